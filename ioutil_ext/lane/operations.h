/* SPDX-License-Identifier: Apache-2.0 */

/* The operations of a lane, which run in the task of their request, or on a worker (operations.c). */

#ifndef IOUTIL_LANE_OPERATIONS_H
#define IOUTIL_LANE_OPERATIONS_H

#include <stdbool.h>

#include "lane/lane.h"

/*
 * Begin an operation on the lane's image: a change claims its range. Called as soon as the request has arrived, before
 * anything that waits, so that changes take effect in order of arrival. operation_run() follows.
 */
void operation_begin(struct iou_lane *lane, struct op *op);

/* Run an operation to its end, and begin it first if it has not begun. Returns its errno. */
int operation_run(struct task *task, struct op *op);

/* Whether storage only copies, so that shorter pieces let the peer go on sooner. */
bool operation_only_copies(const struct iou_lane *lane);

#endif
