/* SPDX-License-Identifier: Apache-2.0 */

/* The requests of an operation, as many together as make a round (rounds.c). */

#ifndef IOUTIL_NBD_CLIENT_ROUNDS_H
#define IOUTIL_NBD_CLIENT_ROUNDS_H

#include "nbd_client/client.h"

/* Requests of a round. Of pieces of 2 MiB that is more than any operation of a lane has. */
#define MOST_TOGETHER 16u

/* All reads and writes of a segment use one connection. So no server returns old data because the new data is in the
   cache of another connection, whether or not it says NBD_FLAG_CAN_MULTI_CONN (proto.md). */
#define SEGMENT (128 * MIB)

/* An operation that has entered a session. */
struct round {
    struct op *op;
    struct client *client;
    uint64_t session;         /* its number */
    struct agreed agreed;     /* a copy: the session may end, and another one begin */
    bool mixes;               /* a request without data may be for segments of several connections */
    uint64_t tells;           /* extents: what is asked for */
    uint32_t teller;          /* the connection that is asked, if the session mixes */
    struct contexts contexts; /* of the connections that are asked */
    uint64_t longest_bare;    /* as in struct session */
    uint16_t flags;           /* of each change */
    uint32_t count;
    struct nbd_request requests[MOST_TOGETHER];
};

/* Look at the session that there is, or was last. */
void round_look(struct round *round, struct op *op);

/* Enter the session, and wait for one if there is none. The range of the operation is inside of the image, or it fails
   with ENODATA. Returns 0 or -errno, as op_fail(). */
int round_enter(struct round *round, struct op *op);

/* Add a request, and run the round first if it is full. counts: bytes by which it advances the operation. Returns 0, or
   the -errno of that round. */
int round_add(struct round *round, struct nbd_request request);

/* Add requests for the data of a range of whole blocks: of CMD_READ or CMD_WRITE. memory: of the first byte; same: of
   each request. */
int round_add_data(struct round *round, uint16_t command, uint64_t start, uint64_t end, char *memory, bool same);

/* Run the requests, and wait until all have ended: their memory is in use. If one fails, the operation does, too. */
int round_run(struct round *round);

/* Return the bytes of the first request of a range that has no data. */
uint64_t round_bare(const struct round *round, uint64_t offset, uint64_t length);

/* Run a change of a range of whole blocks by requests without data, one after the other. */
int round_change(struct round *round, uint16_t command, uint64_t start, uint64_t end);

/* Let the operation fail: with the failure that was found, or with one that is made. */
int round_fail(struct round *round, uint64_t number, int error);

/* ---- operations.c, zeroing.c, extents.c ------------------------------------------------------------------------- */

/* A block of which a range has only a part, start..end. memory: for the whole block. */
struct edge {
    uint64_t block, start, end;
    char *memory;
};

/* A range as whole blocks, start..end (empty if start >= end), and the edges beside them. */
struct blocks {
    uint64_t size, start, end;
    char *memory; /* the caller frees it */
    unsigned count;
    struct edge edges[2];
};

/* Cut the range of an operation. 0 or -errno. */
int blocks_cut_range(struct blocks *blocks, struct op *op);

/* Read the blocks at the edges, and add requests that write them with what is new. data: of the operation; NULL:
   zeros. */
int blocks_patch(struct blocks *blocks, struct round *round, const char *data);

int nbd_read(struct op *op);
int nbd_write(struct op *op);
int nbd_zero(struct op *op);
int nbd_trim(struct op *op);

/* Flush: for the operation, and for a change with FUA. */
int nbd_sync(struct op *op);

/* Begin a change, of which the requests have FUA if it has, and the server can do that. */
void nbd_begin_change(struct round *round);

/* End a change; error: of its requests. If it has to be on stable storage, it flushes where the server has no FUA, and
   fails after a failed flush, as a flush does. */
int nbd_changed(struct round *round, int error);

/* Claim the range of a change. */
int nbd_claim(struct op *op);

#endif
