/* SPDX-License-Identifier: Apache-2.0 */

/* The bodies of requests (body.c), those that are encoded (encoded.c) or in chunks (chunked.c). For the leader only. */

#ifndef IOUTIL_LANE_BODY_H
#define IOUTIL_LANE_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "api/head.h"
#include "api/zstd.h"
#include "lane/socket.h"
#include "lane/waits.h"

/* A body that is received in parts. A body that is sent uses only next and left. */
struct body {
    uint64_t next, left;   /* bytes that are in no part yet: offset in the image, and length */
    struct memory *memory; /* for the part that is being received; NULL until there is some */
    uint64_t length, got;  /* of the part: its bytes, and how many of them have arrived */
    bool slow;             /* the client lately sent less than the staging holds in LANE_MOMENT_MS */
    bool is_encoded;       /* next and left count bytes of the content */
    uint64_t encoded;      /* bytes of the encoded body that were not used */
    iou_zstd *decoder;
    char *tail;        /* the last bytes of the content while they wait for the end of the frame, or NULL */
    bool is_chunked;   /* until the end has arrived, the number of bytes left is only an upper bound */
    bool is_unframed;  /* the framing of the staged bytes was removed */
    iou_chunks chunks; /* the state of the reader of chunks */
    uint32_t refusal;  /* why the body was refused: an iou_zstd_refusal (-EBADMSG) or iou_chunks_refusal (-EILSEQ) */
};

void body_begin(struct body *body, uint64_t offset, uint64_t length);

/*
 * Receive the next part, of at most `most` bytes, into one piece of memory, which this function takes. So room_for()
 * these bytes must be at most MEMORY_PIECE. If the bytes pause for LANE_MOMENT_MS, the part is shorter, and ends at a
 * page. Returns 0, -ENODATA if the client has ended the stream, -ECANCELED, -ENOMEM, or the -errno of the socket. After
 * an error the part has no memory, and its bytes are lost.
 *
 * If the body is in chunks, its last part may be empty and without memory, and -EILSEQ means that its framing is
 * refused.
 */
int body_receive(struct iou_lane *lane, struct body *body, uint64_t most);

/*
 * Do the same with a body that is a frame of zstd: the part has bytes of its content. The last part is complete only at
 * the end of the frame and of the body. Returns -EBADMSG if the frame is refused, and -ENOBUFS if there is no memory
 * for a decoder.
 */
int body_receive_encoded(struct iou_lane *lane, struct body *body, uint64_t most);

/*
 * Call body_begin_encoded() after body_begin() if the body is one frame of zstd, with `encoded` bytes.
 * body_end_encoded() frees the decoder and its memory. body_receive_encoded() does so, too, after the last part and
 * after an error.
 */
void body_begin_encoded(struct body *body, uint64_t encoded);
void body_end_encoded(struct body *body);

/* Call this for a body in chunks, after body_begin(), and after body_begin_encoded() if the body is also encoded. The
   length that was passed there has no effect. */
void body_begin_chunked(struct body *body);

/* Return how many bytes of the body, as it is sent, were not used. The framing of chunks does not count. */
static inline uint64_t *body_unread(struct body *body) {
    return body->is_encoded ? &body->encoded : &body->left;
}

/* Drop the staged bytes of a body in chunks, whose framing was removed. */
void body_drop_staged(struct iou_lane *lane, struct body *body);

/* Take the memory of a received part. Call body_advance() before the next part. */
struct memory *body_take_memory(struct body *body);
void body_advance(struct body *body);

/* Give back the memory of a part, if it was not taken. */
void body_drop_memory(struct iou_lane *lane, struct body *body);

/* ---- for encoded.c and chunked.c -------------------------------------------------------------------------------- */

/* Get memory for a part of `length` bytes. */
int body_get_memory(struct iou_lane *lane, struct body *body, uint64_t length, enum memory_patience patience);

/* Return the address of a byte of the part. */
static inline char *body_place(const struct body *body, uint64_t byte) {
    return place_in(body->memory, body->next) + byte;
}

/* Receive bytes of the body behind the staged ones, as socket_stage() does. Also returns -EILSEQ for a body in chunks.
 */
ssize_t body_stage(struct iou_lane *lane, struct body *body, int ms);

/* Remove the framing of bytes that were staged before the body began. Returns 0 or -EILSEQ. */
int body_unframe(struct iou_lane *lane, struct body *body);

/* For a body in chunks: fill the staging, or receive the end. Returns false and sets *error as socket_gather() does. */
bool body_gather_chunks(struct iou_lane *lane, struct body *body, int *error);

/* For a body in chunks: receive more bytes of the part. The part gets shorter if the body ends. Returns -EAGAIN if the
   bytes pause. */
int body_receive_chunks(struct iou_lane *lane, struct body *body);

#endif
