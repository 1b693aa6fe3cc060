/* SPDX-License-Identifier: Apache-2.0 */

/* Operations of a lane, run in the thread that has the request (operations.c). */

#ifndef IOUTIL_LANE_OPERATIONS_H
#define IOUTIL_LANE_OPERATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "lane/turns.h"

/*
 * Begin an operation on the lane's image: what it changes is claimed. So this is done as soon as the request is there,
 * and before anything that waits: what arrives later comes later. It is followed by turns until it has ended.
 */
void operation_begin(struct iou_lane *lane, struct op *op);

/* Run it for a turn, which may wait for others before. True: it has ended. */
bool operation_turn(struct lane_thread *thread, struct op *op);

/* Count one that has ended. Returns its errno. */
int operation_end(struct iou_lane *lane, struct op *op);

/* All of it at once, for who did not begin it before. Returns its errno. */
int operation_run(struct lane_thread *thread, struct op *op);

/* Whether operations of this kind do not sleep in storage, mostly: see operations.c. */
bool operation_is_quick(const struct iou_lane *lane, uint32_t kind);
void operations_init(struct iou_lane *lane);

#endif
