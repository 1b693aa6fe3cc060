/* SPDX-License-Identifier: Apache-2.0 */

/* Looking at all tables of an image before it is written (walk.c). */

#ifndef IOUTIL_QCOW2_WALK_H
#define IOUTIL_QCOW2_WALK_H

#include "qcow2/qcow2.h"

/*
 * Count the references to each cluster, compare them with the reference counts, and learn from these which clusters are
 * free. -EUCLEAN: an entry cannot be right, or a count is too low, so that writing would destroy data. -ENOTSUP: it
 * would take too long or too much memory. No other thread knows the image yet.
 */
int walk_run(struct qcow2 *q, struct op *op, iou_qcow2_verdict *verdict);

#endif
