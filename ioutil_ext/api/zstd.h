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
    IOU_ZSTD_MAX_MEMORY = 9 * 1048576, /* bytes: most that iou_zstd_head() names */
    IOU_ZSTD_WINDOWS = 64 * 1048576    /* bytes: most of all decoders of the process at a time */
};

/* The reason why a frame is refused. */
typedef enum {
    IOU_ZSTD_NO_FRAME = 1, /* the data does not begin with a frame; a skippable one is none */
    IOU_ZSTD_HEAD,         /* the head of the frame has reserved bits, or asks for a dictionary */
    IOU_ZSTD_WINDOW,       /* the window is larger than IOU_ZSTD_MAX_WINDOW */
    IOU_ZSTD_LENGTH,       /* the content has more or fewer bytes than announced */
    IOU_ZSTD_CUT,          /* the data ends before the frame */
    IOU_ZSTD_TRAILING,     /* the data goes on after the frame */
    IOU_ZSTD_IDLE,         /* more data than the content can need: blocks of nothing */
    IOU_ZSTD_DATA          /* a block is malformed, or the content has another checksum */
} iou_zstd_refusal;

/* Make a decoder of a frame with so many bytes of content, at least 1. -EINVAL, -ENOMEM. */
int iou_zstd_new(uint64_t length, iou_zstd **result);
void iou_zstd_free(iou_zstd *decoder);

/*
 * Take bytes of the frame's head. Returns how many of the data were taken, or a negated iou_zstd_refusal. *memory: 0:
 * the head needs further data; else the bytes that decoding takes at most, which the caller counts before it goes on.
 */
int64_t iou_zstd_head(iou_zstd *decoder, const void *data, uint64_t length, uint64_t *memory);

/*
 * Take the memory that the head names from that of all decoders, for an owner: no owner gets more than twice what is
 * left. -EAGAIN: there is none now. The caller tries again until its patience ends: decoders of others whose peers let
 * them wait are asked to end for it (docs/adr/0045). -EINVAL: the head is not complete, or the memory was taken.
 */
int iou_zstd_admit(iou_zstd *decoder, uint64_t owner);

/* Begin to wait for bytes of the peer, and go on. */
void iou_zstd_rest(iou_zstd *decoder);
void iou_zstd_go_on(iou_zstd *decoder);

/* Whether the decoder has to end, because its peer lets it wait and another one needs the memory. Any thread. */
uint32_t iou_zstd_is_wanted(const iou_zstd *decoder);

typedef struct {
    uint64_t taken;   /* bytes of the data */
    uint64_t made;    /* bytes of content that were put into the room */
    uint64_t left;    /* bytes of content that are still to come */
    uint32_t ended;   /* the frame has ended, and all is as announced */
    uint32_t refusal; /* iou_zstd_refusal; 0: none */
} iou_zstd_step;

/*
 * Decode data behind the head into room, until the one is used up or the other is full; with all content made, until
 * the frame ends. Called again with what was not taken; without data it makes what is left of earlier data. After the
 * end, any data is refused (IOU_ZSTD_TRAILING). Nothing of the content is made that was not announced. Returns 0,
 * -EBADMSG: step->refusal says why; -ENOMEM, -EINVAL: its memory was not taken. After a failure all calls fail.
 */
int iou_zstd_decode(iou_zstd *decoder, const void *data, uint64_t length, void *room, uint64_t size,
                    iou_zstd_step *step);

/* What all decoders of the process have, and have done. */
typedef struct {
    uint64_t memory; /* bytes that they have taken, by iou_zstd_admit() */
    uint64_t taken;  /* bytes of data */
    uint64_t made;   /* bytes of content */
} iou_zstd_totals;

void iou_zstd_get_totals(iou_zstd_totals *totals);

/* Return `zstd` and the version of the library that this was built with. */
const char *iou_zstd_version(void);

#endif
