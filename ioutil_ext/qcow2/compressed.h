/* SPDX-License-Identifier: Apache-2.0 */

/* Clusters that are compressed (compressed.c). */

#ifndef IOUTIL_QCOW2_COMPRESSED_H
#define IOUTIL_QCOW2_COMPRESSED_H

#include "qcow2/qcow2.h"

/*
 * Read a part of the cluster of an entry: `length` bytes from `start` on, which lie in the cluster. The lock is not
 * held. -EIO: the data does not decode to a whole cluster. -ENOMEM.
 */
int compressed_read(struct qcow2 *q, struct op *op, uint64_t entry, uint64_t start, uint64_t length, void *to);

#endif
