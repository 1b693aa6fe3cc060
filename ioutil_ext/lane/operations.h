/* SPDX-License-Identifier: Apache-2.0 */

/* The operations of a lane, which run in the task of their request, or on a worker (operations.c). */

#ifndef IOUTIL_LANE_OPERATIONS_H
#define IOUTIL_LANE_OPERATIONS_H

#include <stdbool.h>

#include "lane/lane.h"

/* Begin an operation on the lane's image. A change claims its range. Call this as soon as the request has arrived,
   before anything that waits, so that changes take effect in order of arrival. Then call operation_run(). */
void operation_begin(struct iou_lane *lane, struct op *op);

/* Run an operation to its end. Begin it before, if it has not begun. Returns 0 or its errno. */
int operation_run(struct task *task, struct op *op);

/* Return whether storage only copies. Then shorter pieces let the peer continue sooner. */
bool operation_only_copies(const struct iou_lane *lane);

#endif
