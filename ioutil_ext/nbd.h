/* SPDX-License-Identifier: Apache-2.0 */

/*
 * NBD in lanes: messages (nbd_wire.c), receiving (nbd_receive.c), requests (nbd_requests.c), replies (nbd_replies.c),
 * the order of it all (nbd_lane.c).
 */

#ifndef IOUTIL_NBD_H
#define IOUTIL_NBD_H

#include "lane.h"

/*
 * A payload of at most LANE_PIECE is written when it is there as a whole (docs/nbd.md); a longer one in such pieces.
 * Reads are cut likewise, where that is allowed. Those of qemu-img are not longer.
 */

/* ---- messages --------------------------------------------------------------------------------------------------- */

/* nbd.md: the numbers of the transmission phase. */
enum { CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES, CMD_BLOCK_STATUS, COMMANDS };
enum { FLAG_FUA = 1, FLAG_NO_HOLE = 2, FLAG_DF = 4, FLAG_REQ_ONE = 8, FLAG_FAST_ZERO = 16, FLAG_PAYLOAD_LEN = 32 };
enum {
    NBD_EPERM = 1,
    NBD_EIO = 5,
    NBD_EINVAL = 22,
    NBD_ENOSPC = 28,
    NBD_EOVERFLOW = 75,
    NBD_ENOTSUP = 95,
    NBD_ESHUTDOWN = 108
};
enum { CHUNK_NONE = 0, CHUNK_DATA = 1, CHUNK_HOLE = 2, CHUNK_STATUS = 5, CHUNK_STATUS_EXT = 6, CHUNK_ERROR = 0x8001 };

#define MAX_HEADER 32u            /* of a request or a reply: an extended one */
#define MAX_PAYLOAD LANE_LONG     /* what READ and WRITE may move */
#define MAX_DRAINED (64 * MIB)    /* a longer payload is not read only to be refused: the connection ends */
#define MAX_STATUS_EXTENTS 65536u /* in one reply */
#define MAX_COMPACT_EXTENT (((uint64_t)1 << 32) - 64 * KIB)

struct request {
    uint64_t cookie; /* as it came */
    uint64_t offset, length, payload;
    uint16_t flags, command;
    uint32_t error;   /* why it is refused; 0: it is not */
    const char *text; /* of the error */
};

/* What was negotiated. */
struct dialect {
    uint64_t size;
    uint32_t flags;
    uint32_t header_size; /* of requests */
};

/* Whether replies come in chunks. */
static inline bool wire_has_chunks(const struct dialect *dialect) {
    return dialect->flags & (IOU_LANE_STRUCTURED | IOU_LANE_EXTENDED);
}

/* -EPROTO: nothing can be understood any more. */
int wire_parse(const struct dialect *dialect, const char *header, struct request *request);
void wire_refuse(struct request *request, uint32_t error, const char *text);

/* Write a header of at most MAX_HEADER bytes; returns its size. */
size_t wire_simple(char *header, const struct request *request, uint32_t error);
size_t wire_chunk(char *header, const struct dialect *dialect, const struct request *request, uint16_t type, bool done,
                  uint64_t length);
size_t wire_put16(char *place, uint16_t number);
size_t wire_put32(char *place, uint32_t number);
size_t wire_put64(char *place, uint64_t number);

/* ---- the lane --------------------------------------------------------------------------------------------------- */

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
    struct payload payload;
    uint64_t got;    /* bytes of the payload's piece */
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

/* ---- replies ---------------------------------------------------------------------------------------------------- */

void reply_success(struct iou_lane *lane, const struct request *request);
void reply_error(struct iou_lane *lane, const struct request *request, uint32_t error, const char *text);

/* Part or all of what a READ has found, which is at offset; done: it is the last part. */
void reply_data(struct iou_lane *lane, const struct request *request, char *data, uint64_t offset, uint64_t length,
                bool done);

/* extents: count records, overwritten. */
void reply_status(struct iou_lane *lane, const struct request *request, iou_extent *extents, uint32_t count);

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

/* Write a piece of a payload, unless an earlier one has failed. */
void request_write_piece(struct lane_thread *thread, struct payload *payload);

/* What a write is told for which there is no memory. */
struct answer request_no_memory(struct iou_lane *lane);

/* Begin what it changes, if it does and may; op->kind: 0: it does not. */
void request_begin(struct iou_lane *lane, const struct request *request, struct payload *payload, struct op *op);

/* Do it, and answer. Gives the payload's memory back. leads: this thread does. */
void request_run(struct lane_thread *thread, const struct request *request, struct payload *payload, struct op *op,
                 bool leads);

/* It is answered, or will not be. */
void request_end(struct iou_lane *lane);

#endif
