/* SPDX-License-Identifier: Apache-2.0 */

/* What a guest reads, of all files of a chain (chain.c). No lock is held. */

#ifndef IOUTIL_QCOW2_CHAIN_H
#define IOUTIL_QCOW2_CHAIN_H

#include "qcow2/map.h"
#include "qcow2/qcow2.h"

/* A run of one kind. KIND_UNALLOCATED: no file has it, and it reads as zeros. */
struct run {
    struct mapping mapping;
    const struct level *level; /* of data */
    uint64_t pos;
    unsigned phase; /* of grace_enter() */
};

/*
 * Find what is at pos, from one level on, and how far it goes. Until chain_leave() nobody is given its clusters. The
 * levels below the first one are read only.
 */
int chain_find(struct chain *chain, struct op *op, uint32_t first, uint64_t pos, uint64_t length, struct run *run);
void chain_leave(struct chain *chain, const struct run *run);

/* Read a range, from one level on. */
int chain_read(struct chain *chain, struct op *op, uint32_t first, void *to, uint64_t pos, uint64_t length);

/* Whether a range reads as zeros from one level on, as far as tables say. */
int chain_is_zero(struct chain *chain, struct op *op, uint32_t first, uint64_t pos, uint64_t length, bool *zero);

/* Read what a run has, from its beginning on. */
int chain_read_run(struct op *op, const struct run *run, void *to);

/* ---- compressed.c ----------------------------------------------------------------------------------------------- */

/* Clusters that are compressed (compressed.c). */

/*
 * Read a part of the cluster of an entry: `length` bytes from `start` on, which lie in the cluster. The lock is not
 * held. -EIO: the data does not decode to a whole cluster. -ENOMEM.
 */
int compressed_read(struct qcow2 *q, struct op *op, uint64_t entry, uint64_t start, uint64_t length, void *to);

/* ---- buffers.c -------------------------------------------------------------------------------------------------- */

/* Memory of clusters, bounded for each image (buffers.c). The lock is not held. */

/* Get one buffer, of pages, of the image of the operation; waits until there is room. NULL: -ENOMEM. */
void *buffers_get(struct op *op, struct buffers *buffers, uint64_t bytes);
void buffers_free(const struct op *op, struct buffers *buffers, void *memory, uint64_t bytes);

/* ---- bitmap.c --------------------------------------------------------------------------------------------------- */

/* The bitmap of an image that tells what has changed (bitmap.c). Only images that are open for reading have one. */

/*
 * Find a bitmap by its name, and read its table. verdict->bitmap gets what became of it. -EUCLEAN, with the reason: the
 * directory, or what the bitmap says of itself, cannot be right. Blocks; no lock is held.
 */
int bitmap_open(struct op *op, struct qcow2 *q, const char *name, iou_qcow2_verdict *verdict);

/* Runs that are found at a time. */
#define CHANGES 64u

/* Runs that follow each other, each of what the one before is not: changed, or as it was. */
struct changes {
    bool dirty;           /* whether the next one has changed */
    uint32_t next, count; /* of ends */
    uint64_t ends[CHANGES];
};

/*
 * Find the run that pos is in, and some that follow, at most to `end`. The image's lock is held; may let go of it.
 * -EIO: the table cannot be right.
 */
int bitmap_find(struct qcow2 *q, struct op *op, uint64_t pos, uint64_t end, struct changes *changes);

#endif
