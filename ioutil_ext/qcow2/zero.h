/* SPDX-License-Identifier: Apache-2.0 */

/* Zeroing and trimming (zero.c). No lock is held. */

#ifndef IOUTIL_QCOW2_ZERO_H
#define IOUTIL_QCOW2_ZERO_H

#include "qcow2/write.h"

/*
 * Zero as much as is zeroed in one way, from the beginning on; for a trim, free what can be freed of it. Returns the
 * bytes, or -errno; -ENOTSUP: IOU_FAST_ONLY forbids to write data, and nothing of this step was changed.
 */
int64_t zero_some(struct chain *chain, struct op *op, uint64_t pos, uint64_t length, uint32_t flags);
int64_t zero_trim_some(struct chain *chain, struct op *op, uint64_t pos, uint64_t length);

#endif
