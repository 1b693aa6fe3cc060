/* SPDX-License-Identifier: Apache-2.0 */

/* The requests of an operation, which are sent in rounds (rounds.c). */

#ifndef IOUTIL_NBD_CLIENT_ROUNDS_H
#define IOUTIL_NBD_CLIENT_ROUNDS_H

#include "nbd_client/client.h"

/* Most requests of a round. No operation of a lane has as many pieces of 2 MiB. */
#define MOST_TOGETHER 16u

/* All reads and writes of a segment use the same connection. So no server returns old data because the new data is in
   the cache of another connection, even without NBD_FLAG_CAN_MULTI_CONN (proto.md). */
#define SEGMENT (128 * MIB)

/* An operation that has entered a session. */
struct round {
    struct op *op;
    struct client *client;
    uint64_t session;         /* its number */
    struct agreed agreed;     /* a copy, because the session may end, and another one begin */
    bool mixes;               /* a request without data may be for segments of several connections */
    uint64_t tells;           /* extents: the flags to ask for */
    uint32_t teller;          /* the connection to ask, if the session mixes */
    struct contexts contexts; /* of the connections to ask */
    uint64_t longest_bare;    /* as in struct session */
    uint16_t flags;           /* of each change */
    uint32_t count;
    struct nbd_request requests[MOST_TOGETHER];
};

/* Begin with the state of the present session, or of the last one if there is none. */
void round_look(struct round *round, struct op *op);

/* Enter the session, and wait for one if there is none. Fails with ENODATA if the range of the operation is not inside
   of the image. Returns 0 or -errno, as op_fail() does. */
int round_enter(struct round *round, struct op *op);

/* Add a request. If the round is full, run it before. `counts` is how many bytes the request advances the operation.
   Returns 0, or the -errno of that round. */
int round_add(struct round *round, struct nbd_request request);

/* Add requests for the data of a range of whole blocks, of CMD_READ or CMD_WRITE. `memory` is that of the first byte;
   with `same`, each request has the same memory. */
int round_add_data(struct round *round, uint16_t command, uint64_t start, uint64_t end, char *memory, bool same);

/* Run the requests, and wait until all have ended; their memory is in use until then. If one fails, the operation
   fails. */
int round_run(struct round *round);

/* Return how many bytes the first request without data of a range may have. */
uint64_t round_bare(const struct round *round, uint64_t offset, uint64_t length);

/* Change a range of whole blocks by requests without data, one after the other. */
int round_change(struct round *round, uint16_t command, uint64_t start, uint64_t end);

/* Fail the operation with a failure that was found, or with a new one. */
int round_fail(struct round *round, uint64_t number, int error);

/* ---- operations.c, zeroing.c, extents.c ------------------------------------------------------------------------- */

/* The part start..end of a block that a range covers only in part. `memory` is for the whole block. */
struct edge {
    uint64_t block, start, end;
    char *memory;
};

/* A range as whole blocks, start..end (empty if start >= end), and the edges on both sides. */
struct blocks {
    uint64_t size, start, end;
    char *memory; /* the caller frees it */
    unsigned count;
    struct edge edges[2];
};

/* Cut the range of an operation. Returns 0 or -errno. */
int blocks_cut_range(struct blocks *blocks, struct op *op);

/* Read the blocks at the edges, and add requests that write them with the new bytes. `data` is that of the operation,
   or NULL for zeros. */
int blocks_patch(struct blocks *blocks, struct round *round, const char *data);

int nbd_read(struct op *op);
int nbd_write(struct op *op);
int nbd_zero(struct op *op);
int nbd_trim(struct op *op);

/* Flush, for the operation of this kind and for a change with FUA. */
int nbd_sync(struct op *op);

/* Begin a change. Its requests get FUA if the change has it and the server supports it. */
void nbd_begin_change(struct round *round);

/* End a change. `error` is that of its requests. A change that has to be on stable storage flushes if the server has no
   FUA. Like a flush, it fails after a failed flush. */
int nbd_changed(struct round *round, int error);

/* Claim the range of a change. */
int nbd_claim(struct op *op);

#endif
