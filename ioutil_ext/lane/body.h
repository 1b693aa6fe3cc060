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

/* A body that is received in parts; or one that is sent, which uses only next and left. */
struct body {
    uint64_t next, left;   /* the bytes of which no part was taken: offset in the image, and length */
    struct memory *memory; /* of the part that is being received; NULL: it has none yet */
    uint64_t length, got;  /* of the part: bytes, and bytes that have come */
    bool slow;             /* the client lately sent less than the staging holds in LANE_MOMENT_MS */
    bool is_encoded;       /* next and left are of the content */
    uint64_t encoded;      /* bytes of the encoded body that were not taken */
    iou_zstd *decoder;
    char *tail;        /* the last bytes of the content, which wait for the end of the frame; NULL: none do */
    bool is_chunked;   /* until its end has come, what was not taken is only known to be at most so long */
    bool is_unframed;  /* the framing of the staged bytes was removed */
    iou_chunks chunks; /* the framing */
    uint32_t refusal;  /* why the body was refused: an iou_zstd_refusal (-EBADMSG) or iou_chunks_refusal (-EILSEQ) */
};

void body_begin(struct body *body, uint64_t offset, uint64_t length);

/*
 * Receive the next part, of at most `most` bytes, into memory that is taken here: one piece, so room_for() them must be
 * at most MEMORY_PIECE. The part is shorter if its bytes pause for LANE_MOMENT_MS; it then ends at a page. -ENODATA:
 * the client has ended the stream; -ECANCELED, -ENOMEM or the socket's -errno. After an error the part has no memory,
 * and its bytes are lost. Of a body in chunks the last part may be empty, without memory; -EILSEQ: its framing is
 * refused.
 */
int body_receive(struct iou_lane *lane, struct body *body, uint64_t most);

/*
 * Do the same with a body that is a frame of zstd: the part is of its content. The last part is complete only when the
 * frame has ended, and the body with it. -EBADMSG: the frame is refused. -ENOBUFS: there is no memory for a decoder.
 */
int body_receive_encoded(struct iou_lane *lane, struct body *body, uint64_t most);

/* The body is one frame of zstd, of so many bytes: after body_begin(). body_end_encoded() frees what decoding has
   taken; body_receive_encoded() does so itself after the last part and after an error. */
void body_begin_encoded(struct body *body, uint64_t encoded);
void body_end_encoded(struct body *body);

/* The body comes in chunks: after body_begin(), and body_begin_encoded() if it is encoded, too. The length of the body
   that was given there has no effect. */
void body_begin_chunked(struct body *body);

/* The bytes of the body, as it is sent, that were not taken; in chunks, without their framing. */
static inline uint64_t *body_unread(struct body *body) {
    return body->is_encoded ? &body->encoded : &body->left;
}

/* Drop the staged bytes of a body in chunks: they have no framing any more. */
void body_drop_staged(struct iou_lane *lane, struct body *body);

/* Take the memory of a received part, and go on to the next part. */
struct memory *body_take_memory(struct body *body);
void body_advance(struct body *body);

/* Give back the memory of a part that was not taken. */
void body_drop_memory(struct iou_lane *lane, struct body *body);

/* ---- for encoded.c and chunked.c -------------------------------------------------------------------------------- */

/* Get memory for a part of length bytes. */
int body_get_memory(struct iou_lane *lane, struct body *body, uint64_t length, enum memory_patience patience);

/* Return the address of a byte of the part. */
static inline char *body_place(const struct body *body, uint64_t byte) {
    return place_in(body->memory, body->next) + byte;
}

/* Receive bytes of the body behind the staged ones, as socket_stage(). Also -EILSEQ, if it is in chunks. */
ssize_t body_stage(struct iou_lane *lane, struct body *body, int ms);

/* Remove the framing of what was staged before the body began. 0, or -EILSEQ. */
int body_unframe(struct iou_lane *lane, struct body *body);

/* Of a body in chunks: fill the staging, or receive the end. False: *error as of socket_gather(). */
bool body_gather_chunks(struct iou_lane *lane, struct body *body, int *error);

/* Of a body in chunks: receive further bytes of the part, which is shorter if the body ends. -EAGAIN: they pause. */
int body_receive_chunks(struct iou_lane *lane, struct body *body);

#endif
