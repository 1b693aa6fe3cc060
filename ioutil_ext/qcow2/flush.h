/* SPDX-License-Identifier: Apache-2.0 */

/* Putting tables into the file, in an order in which the file is sound at each moment (flush.c). No lock is held. */

#ifndef IOUTIL_QCOW2_FLUSH_H
#define IOUTIL_QCOW2_FLUSH_H

#include "qcow2/qcow2.h"

/*
 * Put all that was changed before on stable storage. Requests that come while one runs share the next one. After a
 * failure each later one fails, and no table is written any more.
 */
int flush_run(struct qcow2 *q, struct op *op);

/* Flush if more is waiting for that than memory should be spent on. */
int flush_if_full(struct qcow2 *q, struct op *op);

#endif
