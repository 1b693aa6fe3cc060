/* SPDX-License-Identifier: Apache-2.0 */

/* Writing (write.c, copy.c). No lock is held. */

#ifndef IOUTIL_QCOW2_WRITE_H
#define IOUTIL_QCOW2_WRITE_H

#include "qcow2/chain.h"
#include "qcow2/space.h"

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

/* copy.c: write into new clusters that are linked after that. count: guest clusters from `number` on, whose entries are
   in the slice; more than one if all of them are written as a whole. The lock is held, and let go of. */
int64_t write_copy(struct write *write, struct slice *slice, uint64_t number, uint64_t count);

#endif
