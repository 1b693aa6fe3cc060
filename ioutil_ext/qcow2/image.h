/* SPDX-License-Identifier: Apache-2.0 */

/* The row of functions for images in the format qcow2 (image.c), and how it works. */

#ifndef IOUTIL_QCOW2_IMAGE_H
#define IOUTIL_QCOW2_IMAGE_H

#include "qcow2/chain.h"
#include "qcow2/qcow2.h"
#include "qcow2/space.h"

extern const struct image_ops QCOW2_IMAGE;

/* ---- prompt.c --------------------------------------------------------------------------------------------------- */

/* Whether a fiber can run the operation without keeping its thread. */
bool prompt_is(const struct op *op);

/* ---- extents.c -------------------------------------------------------------------------------------------------- */

/* The operation IOU_EXTENTS: what reads as zeros by the tables, or is a hole of a raw file below, is a hole. */
int extents_of_chain(struct op *op);

/* ---- write.c ---------------------------------------------------------------------------------------------------- */

/* Writing (write.c, copy.c). No lock is held. */

/* A part of a request, and what is known of it. */
struct write {
    struct chain *chain;
    struct qcow2 *q; /* the top */
    struct op *op;
    const char *data; /* NULL: zeros */
    uint32_t flags;   /* of zeros: IOU_FAST_ONLY */
    bool no_zeros;    /* no cluster of zeros is at hand */
    uint64_t pos, length;
    uint64_t zero_from, zero_to; /* there the files below read as zeros */
    uint64_t data_from, data_to; /* there they may not */
};

/*
 * Write as much as is written in one way, from the beginning on. Returns the bytes, or -errno; -ENOTSUP: the flags
 * forbid to write data.
 */
int64_t write_step(struct write *write);

/* copy.c: write the first bytes of the part to a place in the file. zeros: it reads as zeros there. */
int write_content(struct write *write, uint64_t host, uint64_t length, bool zeros);

/* copy.c: write into new clusters that are linked after that. count: guest clusters from `number` on, whose entries are
   in the slice; more than one if all of them are written as a whole. The lock is held, and let go of. */
int64_t write_copy(struct write *write, struct slice *slice, uint64_t number, uint64_t count);

/* ---- zero.c ----------------------------------------------------------------------------------------------------- */

/* Zeroing and trimming (zero.c). No lock is held. */

/*
 * Zero as much as is zeroed in one way, from the beginning on; for a trim, free what can be freed of it. Returns the
 * bytes, or -errno; -ENOTSUP: IOU_FAST_ONLY forbids to write data, and nothing of this step was changed.
 */
int64_t zero_some(struct chain *chain, struct op *op, uint64_t pos, uint64_t length, uint32_t flags);
int64_t zero_trim_some(struct chain *chain, struct op *op, uint64_t pos, uint64_t length);

/* ---- flush.c ---------------------------------------------------------------------------------------------------- */

/* Putting tables into the file, in an order in which the file is sound at each moment (flush.c). No lock is held. */

/*
 * Put all that was changed before on stable storage. Requests that come while one runs share the next one. After a
 * failure to write each later one fails, and no table is written any more. A flush that fails before that, for want of
 * memory or space, fails alone.
 */
int flush_run(struct qcow2 *q, struct op *op);

/*
 * Take a step towards clusters that can be taken again: a flush, or the end of the operations that may still use them.
 * False: none is on its way that needs no flush, and no flush has succeeded. Waits for the slowest of those operations.
 */
bool flush_reclaim(struct qcow2 *q, struct op *op);

/* Flush if more is waiting for that than memory should be spent on. */
int flush_if_full(struct qcow2 *q, struct op *op);

#endif
