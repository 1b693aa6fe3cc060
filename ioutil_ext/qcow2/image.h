/* SPDX-License-Identifier: Apache-2.0 */

/* The functions of struct image_ops for qcow2 images (image.c), and what they use. */

#ifndef IOUTIL_QCOW2_IMAGE_H
#define IOUTIL_QCOW2_IMAGE_H

#include "qcow2/chain.h"
#include "qcow2/qcow2.h"
#include "qcow2/space.h"

extern const struct image_ops QCOW2_IMAGE;

/* ---- prompt.c --------------------------------------------------------------------------------------------------- */

/* Return whether a fiber can run the operation without keeping its thread. */
bool prompt_is(const struct op *op);

/* ---- extents.c -------------------------------------------------------------------------------------------------- */

/* The operation IOU_EXTENTS. Ranges that read as zeros by the tables are holes, and so are holes of a raw file below.
 */
int extents_of_chain(struct op *op);

/* ---- write.c ---------------------------------------------------------------------------------------------------- */

/* Writing (write.c, copy.c). No lock is held. */

/* A part of a request to write, and what is known about it. */
struct write {
    struct chain *chain;
    struct qcow2 *q; /* the top */
    struct op *op;
    const char *data; /* or NULL for zeros */
    uint32_t flags;   /* for zeros: IOU_FAST_ONLY */
    bool no_zeros;    /* there is no free cluster that reads as zeros */
    uint64_t pos, length;
    uint64_t zero_from, zero_to; /* in this range the files below read as zeros */
    uint64_t data_from, data_to; /* in this range they may have data */
};

/* Write as much as one way of writing can, from the beginning of the part on. Returns the bytes, or -errno. -ENOTSUP
   means that the flags forbid to write data. */
int64_t write_step(struct write *write);

/* Write the first bytes of the part to a place in the file, which reads as zeros if `zeros` is set. In copy.c. */
int write_content(struct write *write, uint64_t host, uint64_t length, bool zeros);

/*
 * Write into new clusters, then link them. `count` guest clusters from `number` on have their entries in the slice;
 * more than one only if all are written as a whole. Call this with the lock held; it releases it for a while. In
 * copy.c.
 */
int64_t write_copy(struct write *write, struct slice *slice, uint64_t number, uint64_t count);

/* ---- zero.c ----------------------------------------------------------------------------------------------------- */

/* Zeroing and trimming (zero.c). No lock is held. */

/*
 * Zero as much as one way of zeroing can, from the beginning on. zero_trim_some() frees what can be freed of that.
 * Returns the bytes, or -errno. -ENOTSUP means that IOU_FAST_ONLY forbids to write data, and that this step has changed
 * nothing.
 */
int64_t zero_some(struct chain *chain, struct op *op, uint64_t pos, uint64_t length, uint32_t flags);
int64_t zero_trim_some(struct chain *chain, struct op *op, uint64_t pos, uint64_t length);

/* ---- flush.c ---------------------------------------------------------------------------------------------------- */

/* Putting tables into the file, in an order in which the file is sound at each moment (flush.c). No lock is held. */

/*
 * Put all earlier changes on stable storage. Requests that come while a flush runs share the next flush. After a
 * failure to write, each later flush fails, and no table is written any more. A flush that fails before that, without
 * memory or space, does not affect later ones.
 */
int flush_run(struct qcow2 *q, struct op *op);

/*
 * Do a step after which unlinked clusters may be reused: flush, or wait for the operations that may still use them.
 * Returns false if no clusters are left for which waiting is enough, and no flush has succeeded. Waits for the slowest
 * of these operations.
 */
bool flush_reclaim(struct qcow2 *q, struct op *op);

/* Flush if the lists of clusters that wait for a flush have grown too long. */
int flush_if_full(struct qcow2 *q, struct op *op);

#endif
