/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Decoding of one frame of zstd (RFC 8878): the body of a request with `Content-Encoding: zstd` (RFC 9659). cffi's
 * cdef() reads this after api/ioutil.h, whose conventions apply. A decoder is for one thread at a time.
 */

#ifndef IOUTIL_API_ZSTD_H
#define IOUTIL_API_ZSTD_H

#include <stdint.h>

typedef struct iou_zstd iou_zstd;

enum {
    IOU_ZSTD_MAX_WINDOW = 8388608,     /* bytes; RFC 9659 3 */
    IOU_ZSTD_MAX_MEMORY = 9 * 1048576, /* most bytes that iou_zstd_head() returns as memory of a decoder */
    IOU_ZSTD_WINDOWS = 64 * 1048576    /* most bytes of memory of all decoders of the process at a time */
};

/* The reason why a frame is refused. */
typedef enum {
    IOU_ZSTD_NO_FRAME = 1, /* the data does not begin with a frame; a skippable one is none */
    IOU_ZSTD_HEAD,         /* the head of the frame has reserved bits, or asks for a dictionary */
    IOU_ZSTD_WINDOW,       /* the window is larger than IOU_ZSTD_MAX_WINDOW */
    IOU_ZSTD_LENGTH,       /* the content has more or fewer bytes than announced */
    IOU_ZSTD_CUT,          /* the data ends before the frame */
    IOU_ZSTD_TRAILING,     /* the data continues after the frame */
    IOU_ZSTD_IDLE,         /* more data than the content can need: blocks without content */
    IOU_ZSTD_DATA          /* a block is malformed, or the content has another checksum */
} iou_zstd_refusal;

/* Make a decoder of a frame with `length` bytes of content, at least 1. Returns 0, -EINVAL or -ENOMEM. */
int iou_zstd_new(uint64_t length, iou_zstd **result);
void iou_zstd_free(iou_zstd *decoder);

/*
 * Read bytes of the frame's head. Returns how many bytes were used, or a negated iou_zstd_refusal. Stores 0 in *memory
 * if the head needs more data. Otherwise stores the most bytes of memory that decoding takes; before decoding, the
 * caller calls iou_zstd_admit().
 */
int64_t iou_zstd_head(iou_zstd *decoder, const void *data, uint64_t length, uint64_t *memory);

/*
 * Take the memory that decoding needs from the memory of all decoders, for an owner. No owner gets more than twice what
 * is left. Returns 0, -EAGAIN if there is none now, or -EINVAL if the head is not complete or the memory was taken
 * before. After -EAGAIN the caller may try again, because decoders of other owners that wait for their peers are then
 * asked to end (docs/adr/0045).
 */
int iou_zstd_admit(iou_zstd *decoder, uint64_t owner);

/* Note that the decoder begins to wait for bytes of the peer, or that it continues. */
void iou_zstd_rest(iou_zstd *decoder);
void iou_zstd_go_on(iou_zstd *decoder);

/* Return whether the decoder has to end, because it waits for its peer and another decoder needs the memory. Any thread
   may call this. */
uint32_t iou_zstd_is_wanted(const iou_zstd *decoder);

typedef struct {
    uint64_t taken;   /* bytes of the data that were used */
    uint64_t made;    /* bytes of content that were put into the room */
    uint64_t left;    /* bytes of content that are still to be made */
    uint32_t ended;   /* the frame has ended, and its content is as announced */
    uint32_t refusal; /* iou_zstd_refusal, or 0 */
} iou_zstd_step;

/*
 * Decode data that follows the head into `room`, until the data is used up or the room is full. When all content was
 * made, continue to the end of the frame. Call this again with the data that was not used. A call without data makes
 * the content that is left of earlier data. Data after the end of the frame is refused (IOU_ZSTD_TRAILING). This never
 * makes more content than was announced. Returns 0, -EBADMSG with the reason in step->refusal, -ENOMEM, or -EINVAL if
 * the memory was not taken. After a failure all calls fail.
 */
int iou_zstd_decode(iou_zstd *decoder, const void *data, uint64_t length, void *room, uint64_t size,
                    iou_zstd_step *step);

/* The sums of all decoders of the process. */
typedef struct {
    uint64_t memory; /* bytes of memory that they have now, by iou_zstd_admit() */
    uint64_t taken;  /* bytes of data that they have used */
    uint64_t made;   /* bytes of content that they have made */
} iou_zstd_totals;

void iou_zstd_get_totals(iou_zstd_totals *totals);

/* Return `zstd` and the version of the library that this was built with. */
const char *iou_zstd_version(void);

#endif
