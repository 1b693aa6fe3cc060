/* SPDX-License-Identifier: Apache-2.0 */

/* The operations of an image that an NBD server has, for its row (operations.c, zeroing.c, flushing.c, extents.c). */

#ifndef IOUTIL_NBD_CLIENT_PARTS_H
#define IOUTIL_NBD_CLIENT_PARTS_H

#include "nbd_client/rounds.h"

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

/* Add requests that read the blocks at the edges. counts: their parts are progress. */
int blocks_read(struct blocks *blocks, struct round *round, bool counts);

/* Read the blocks at the edges, and add requests that write them with what is new. data: of the operation; NULL:
   zeros. */
int blocks_patch(struct blocks *blocks, struct round *round, const char *data);

int nbd_read(struct op *op);
int nbd_write(struct op *op);
int nbd_zero(struct op *op);
int nbd_trim(struct op *op);
int nbd_extents(struct op *op);

/* Flush: for the operation, and for a change with FUA. */
int nbd_sync(struct op *op);

/* Note that the flush of an operation has failed: each later one fails. */
void nbd_flush_failed(struct op *op);

/* End a change; error: of its requests. Flushes if the change has to be on stable storage and the server has no FUA. */
int nbd_changed(struct round *round, int error);

/* Claim the range of a change. */
int nbd_claim(struct op *op);

#endif
