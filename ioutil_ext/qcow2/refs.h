/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reference counts of the clusters of the file (refs.c): tables, blocks, numbers of 1 to 64 bits. The image's lock is
 * held; functions with an operation may let go of it.
 */

#ifndef IOUTIL_QCOW2_REFS_H
#define IOUTIL_QCOW2_REFS_H

#include "qcow2/cache.h"

/* A number of 2^order bits in a block or a part of one. Of those with less than 8 bits, the first is in the lowest
   bits of a byte. */
uint64_t refs_number(const uint8_t *data, uint64_t index, uint32_t order);
void refs_put_number(uint8_t *data, uint64_t index, uint32_t order, uint64_t value);

static inline uint64_t refs_block(const struct qcow2 *q, uint64_t index) {
    return index < q->refcount_blocks ? be64toh(q->refcount_table[index]) : 0;
}

/* Whether there is a block for a cluster. */
static inline bool refs_has_block(const struct qcow2 *q, uint64_t cluster) {
    return refs_block(q, cluster >> q->count_bits);
}

/* Make a cluster of zeros, which lies in the range that it is for, a block that counts itself. -EEXIST: meanwhile there
   is one. */
int refs_add_block(struct qcow2 *q, struct op *op, uint64_t cluster);

/* Set the counts of clusters that nothing refers to, or did; their blocks exist. */
int refs_set(struct qcow2 *q, struct op *op, uint64_t first, uint64_t count, uint64_t value);

/* Take one reference away. *left: what is left. -EIO: there was none. */
int refs_drop(struct qcow2 *q, struct op *op, uint64_t cluster, uint64_t *left);

#endif
