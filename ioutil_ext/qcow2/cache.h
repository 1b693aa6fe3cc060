/* SPDX-License-Identifier: Apache-2.0 */

/* Slices of tables, in bounded memory (cache.c). The image's lock is held, unless it says otherwise. */

#ifndef IOUTIL_QCOW2_CACHE_H
#define IOUTIL_QCOW2_CACHE_H

#include "qcow2/qcow2.h"

/* Keys: slices of L2 tables count through the guest's disk, as those of a bitmap, those of reference counts through the
   file. */
#define KEY_COUNTS (UINT64_C(1) << 63)
#define KEY_BITMAP (UINT64_C(1) << 62)

int cache_init(struct qcow2 *q);
void cache_destroy(struct qcow2 *q);

/*
 * Get a slice, and pin it. Its table or block exists. Lets go of the lock to read it. host: where it is in the file. An
 * error is of the read, with the lock held again.
 */
int cache_get(struct qcow2 *q, struct op *op, uint64_t key, uint64_t host, struct slice **slice);

/* The slice if it is in memory, else NULL; it is not pinned. */
const struct slice *cache_peek(struct qcow2 *q, uint64_t key);

static inline void cache_put(struct slice *slice) {
    slice->pins--;
}

void cache_dirty(struct qcow2 *q, struct slice *slice);

#endif
