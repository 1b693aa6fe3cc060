/* SPDX-License-Identifier: Apache-2.0 */

/*
 * NBD in lanes: what requests are answered (answers.c), payloads of WRITE (write.c), receiving (receive.c), replies
 * (replies.c), READ and BLOCK_STATUS (reads.c), all requests (requests.c), the order of it all (lane.c).
 */

#ifndef IOUTIL_NBD_NBD_H
#define IOUTIL_NBD_NBD_H

#include "lane/body.h"
#include "lane/connection.h"
#include "lane/lane.h"
#include "lane/operations.h"
#include "lane/records.h"
#include "nbd/wire.h"

/*
 * A payload of at most LANE_PIECE is written when it is there as a whole, unless it stops on its way (docs/nbd.md); a
 * longer one in such pieces. Reads are cut likewise, where that is allowed. Those of qemu-img are not longer.
 */

_Static_assert(MAX_PAYLOAD == LANE_LONG, "the longest READ that may not be cut has memory");

/* The error of a request, 0: none, and its text. */
struct answer {
    uint32_t error;
    const char *text;
};

/* The last piece of a WRITE's payload, and what became of those before it. */
struct payload {
    struct memory *memory; /* NULL: there is none */
    char *data;
    uint64_t offset, length;
    struct answer answer;
};

/* The next request, as far as it is here. The leader's. */
struct incoming {
    bool begun; /* its header is */
    struct request request;
    struct body body;
    struct payload payload;
    bool after_long; /* the payload before was a long one */
    int error;       /* of the socket; what came before it is done first */
};

/* What a lane of NBD knows besides. */
struct nbd {
    struct dialect dialect;
    uint32_t context;
    uint32_t *errors, errors_count;
    char *reply; /* to the negotiation, until the first thread has sent it */
    size_t reply_length;
    struct incoming incoming;
};

static inline struct nbd *nbd_of(const struct iou_lane *lane) {
    return lane->own;
}

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* The transfer has ended: the connection ends with it. */
struct answer answer_ended(struct iou_lane *lane);

/* Refuse a request of any command, or a piece of a payload, that was not refused yet, if the transfer has ended. */
void answer_check(struct iou_lane *lane, struct answer *answer);

/* What a request is told for which memory_get() had none. */
struct answer answer_no_memory(struct iou_lane *lane, int error);

/* What is said of an operation that has ended; and of one that is run here. */
struct answer answer_of(struct iou_lane *lane, const struct op *op);
struct answer answer_run(struct lane_thread *thread, struct op *op);

/* Fill with what the image has, and zeros past its end. */
struct answer answer_fill(struct lane_thread *thread, char *data, uint64_t offset, uint64_t length);

/* A request is answered, or will not be. */
void request_end(struct iou_lane *lane);

/* ---- WRITE ------------------------------------------------------------------------------------------------------ */

/* Make it the operation that writes the piece. */
void write_set(struct op *op, const struct payload *payload, bool fua);

/* Write a piece of a payload, unless an earlier one has failed. */
void write_piece(struct lane_thread *thread, struct payload *payload);

/* ---- replies ---------------------------------------------------------------------------------------------------- */

void reply_success(struct iou_lane *lane, const struct request *request);
void reply_error(struct iou_lane *lane, const struct request *request, uint32_t error, const char *text);

/*
 * Part or all of what a READ has found, which is at offset; done: it is the last part. If the client pauses, the memory
 * is given back meanwhile, and *memory is NULL then.
 */
void reply_data(struct lane_thread *thread, const struct request *request, struct memory **memory, uint64_t offset,
                uint64_t length, bool done);

/* extents: count records, overwritten. */
void reply_status(struct iou_lane *lane, const struct request *request, iou_extent *extents, uint32_t count);

/* ---- READ and BLOCK_STATUS -------------------------------------------------------------------------------------- */

/* Do it, which is allowed, and answer. */
void read_run(struct lane_thread *thread, const struct request *request);
void read_status(struct lane_thread *thread, const struct request *request);

/* ---- receiving; for the leader only ---------------------------------------------------------------------------------
 */

/*
 * Receive a request and its payload. That of a WRITE is written but for its last piece, which is left in *payload for
 * request_run(); any other is dropped. False: the connection ends.
 */
bool receive_request(struct lane_thread *thread, struct request *request, struct payload *payload);

/* Receive what is there of the next request, if it is a WRITE. Waits for nothing. */
void receive_ahead(struct iou_lane *lane);

/* Give back the memory of a request that nobody will do. */
void receive_end(struct iou_lane *lane);

/* ---- requests --------------------------------------------------------------------------------------------------- */

/* Whether storage is known to do this so fast that handing the turn on would cost more. */
bool request_is_quick(struct iou_lane *lane, const struct request *request);

/* Begin what it changes, if it does and may; op->kind: 0: it does not. */
void request_begin(struct iou_lane *lane, const struct request *request, struct payload *payload, struct op *op);

/* Do it, and answer. Gives the payload's memory back. leads: this thread does. */
void request_run(struct lane_thread *thread, const struct request *request, struct payload *payload, struct op *op,
                 bool leads);

#endif
