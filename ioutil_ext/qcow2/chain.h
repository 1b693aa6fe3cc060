/* SPDX-License-Identifier: Apache-2.0 */

/* Reading what a guest sees, from all files of a chain (chain.c). Call these functions without a lock. */

#ifndef IOUTIL_QCOW2_CHAIN_H
#define IOUTIL_QCOW2_CHAIN_H

#include "qcow2/map.h"
#include "qcow2/qcow2.h"

/* A run of bytes of one kind. KIND_UNALLOCATED means that no file has them, so they read as zeros. */
struct run {
    struct mapping mapping;
    const struct level *level; /* the level that has the data */
    uint64_t pos;
    unsigned phase; /* from grace_enter() */
};

/* Find the run at `pos`, from one level on. Its clusters are not reused until chain_leave(). The levels below the first
   one are only read. */
int chain_find(struct chain *chain, struct op *op, uint32_t first, uint64_t pos, uint64_t length, struct run *run);
void chain_leave(struct chain *chain, const struct run *run);

/* Read a range, from one level on. */
int chain_read(struct chain *chain, struct op *op, uint32_t first, void *to, uint64_t pos, uint64_t length);

/* Set *zero to whether a range reads as zeros from one level on, as far as the tables show. */
int chain_is_zero(struct chain *chain, struct op *op, uint32_t first, uint64_t pos, uint64_t length, bool *zero);

/* Read the data of a run, from its beginning on. */
int chain_read_run(struct op *op, const struct run *run, void *to);

/* ---- compressed.c ----------------------------------------------------------------------------------------------- */

/* Clusters that are compressed (compressed.c). */

/* Read `length` bytes of the cluster of an entry, from its byte `start` on. They lie in the cluster. Call this without
   the lock. Returns 0, -EIO if the data does not decode to a whole cluster, or -ENOMEM. */
int compressed_read(struct qcow2 *q, struct op *op, uint64_t entry, uint64_t start, uint64_t length, void *to);

/* ---- buffers.c -------------------------------------------------------------------------------------------------- */

/* Memory of clusters, bounded for each image (buffers.c). The lock is not held. */

/* Get a buffer, in whole pages, for the image of the operation. Waits until there is room. Returns NULL without memory.
 */
void *buffers_get(struct op *op, struct buffers *buffers, uint64_t bytes);
void buffers_free(const struct op *op, struct buffers *buffers, void *memory, uint64_t bytes);

/* ---- bitmap.c --------------------------------------------------------------------------------------------------- */

/* The bitmap of the changes of an image (bitmap.c). Only images that are open for reading have one. */

/* Find a bitmap by its name, and read its table. Stores in verdict->bitmap whether it can be used. Returns -EUCLEAN,
   with the reason, if the directory or the bitmap's own entry is invalid. Blocks. Call this without the lock. */
int bitmap_open(struct op *op, struct qcow2 *q, const char *name, iou_qcow2_verdict *verdict);

/* The most runs that are found at a time. */
#define CHANGES 64u

/* Runs that follow each other, changed and unchanged in turn. */
struct changes {
    bool dirty;           /* whether the next run has changed */
    uint32_t next, count; /* of `ends` */
    uint64_t ends[CHANGES];
};

/* Find the run that `pos` is in, and some that follow it, at most up to `end`. Call this with the image's lock held; it
   may release it for a while. Returns 0, or -EIO if the table is invalid. */
int bitmap_find(struct qcow2 *q, struct op *op, uint64_t pos, uint64_t end, struct changes *changes);

#endif
