/* SPDX-License-Identifier: Apache-2.0 */

/*
 * NBD in lanes: answers to requests, and payloads of WRITE (answers.c), receiving (receive.c), replies
 * (replies.c), READ and BLOCK_STATUS (reads.c), all requests (requests.c), and the order of the steps (lane.c).
 */

#ifndef IOUTIL_NBD_NBD_H
#define IOUTIL_NBD_NBD_H

#include "lane/body.h"
#include "lane/lane.h"
#include "lane/operations.h"
#include "lane/waits.h"
#include "nbd/wire.h"

/*
 * A payload of at most MEMORY_PIECE is written when all of it has arrived, unless it pauses on its way (docs/nbd.md). A
 * longer payload is written in such pieces. Reads are cut in the same way, where the protocol allows it. The requests
 * of qemu-img are not longer.
 */

_Static_assert(MAX_PAYLOAD == POOL_LONG, "the longest READ that may not be cut has memory");

/* The NBD error of a request, 0 for success, and its text. */
struct answer {
    uint32_t error;
    const char *text;
};

/* The last piece of a WRITE's payload, and the answer so far, from the pieces before it. */
struct payload {
    struct memory *memory; /* or NULL */
    char *data;
    uint64_t offset, length;
    struct answer answer;
};

/* The next request, as far as it has arrived. For the leader. */
struct incoming {
    bool begun; /* its header has arrived */
    struct request request;
    struct body body;
    struct payload payload;
    bool after_long; /* the payload before this request was a long one */
    int error;       /* of the socket; earlier requests are done first */
};

/* The state of an NBD lane. */
struct nbd {
    struct dialect dialect;
    iou_lane_context contexts[IOU_LANE_CONTEXTS];
    uint32_t contexts_count;
    uint64_t tells; /* the flags of all contexts together */
    uint32_t *errors, errors_count;
    char *reply; /* the last reply of the negotiation, until the first task has sent it */
    size_t reply_length;
    struct incoming incoming;
};

/* Return command, flags and range of a request for its record. */
static inline iou_record nbd_describe(const struct request *request) {
    return (iou_record){
        .offset = request->offset,
        .length = request->length,
        .kind = request->command,
        .flags = request->flags,
    };
}

static inline struct nbd *nbd_of(const struct iou_lane *lane) {
    return lane->own;
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* Refuse a request, or a piece of a payload, if the transfer has ended, unless it was refused before. */
void answer_check(struct iou_lane *lane, struct answer *answer);

/* Return the answer to a request for which lane_get_memory() has failed with this error. */
struct answer answer_no_memory(struct iou_lane *lane, int error);

/* Return the answer for an operation that has ended. answer_run() runs the operation before. */
struct answer answer_of(struct iou_lane *lane, const struct op *op);
struct answer answer_run(struct task *task, struct op *op);

/* Fill memory with the bytes of the image, and with zeros past its end. */
struct answer answer_fill(struct task *task, char *data, uint64_t offset, uint64_t length);

/* Count a request that was answered, or that gets no answer. */
void request_end(struct iou_lane *lane);

/* ---- WRITE ------------------------------------------------------------------------------------------------------ */

/* Set *op to the operation that writes the piece. */
void write_set(struct op *op, const struct payload *payload, bool fua);

/* Write a piece of a payload that is not the last one, unless an earlier piece has failed. `fua` is that of the
   request. */
void write_piece(struct task *task, struct payload *payload, bool fua);

/* ---- replies ---------------------------------------------------------------------------------------------------- */

void reply_success(struct iou_lane *lane, const struct request *request);
void reply_error(struct iou_lane *lane, const struct request *request, uint32_t error, const char *text);

/* Send all or a part of the data of a READ, which is at `offset`. Pass `done` for the last part. If the client pauses,
   the memory is given back, and *memory is NULL afterwards. */
void reply_data(struct task *task, const struct request *request, struct memory **memory, uint64_t offset,
                uint64_t length, bool done);

/*
 * Send the reply to a BLOCK_STATUS, a chunk for each context. There are `count` extents. `payload` is memory for as
 * many extents of one chunk, each of at most MAX_EXTENT bytes. With one context it may be the memory of the extents
 * themselves.
 */
void reply_status(struct iou_lane *lane, const struct request *request, const iou_extent *extents, uint32_t count,
                  char *payload);

/* ---- READ and BLOCK_STATUS -------------------------------------------------------------------------------------- */

/* Do a request that was not refused, and answer it. */
void read_run(struct task *task, const struct request *request);
void read_status(struct task *task, const struct request *request);

/* ---- receiving; for the leader only ----------------------------------------------------------------------------- */

/* Receive a request and its payload. The pieces of a WRITE's payload are written, except the last one, which is left in
 *payload for request_run(). Other payloads are discarded. Returns false if the connection ends. */
bool receive_request(struct task *task, struct request *request, struct payload *payload);

/* Give back the memory of an incoming request that will not be done. */
void receive_end(struct iou_lane *lane);

/* ---- requests --------------------------------------------------------------------------------------------------- */

/* Begin the change of a request. Sets op->kind to 0 if the request is refused, or is no change. */
void request_begin(struct iou_lane *lane, const struct request *request, struct payload *payload, struct op *op);

/* Do a request and answer it. Gives the payload's memory back. */
void request_run(struct task *task, const struct request *request, struct payload *payload, struct op *op);

#endif
