/* SPDX-License-Identifier: Apache-2.0 */

/* How much a device has to do at a time (lane_depth.c). */

#ifndef IOUTIL_LANE_DEPTH_H
#define IOUTIL_LANE_DEPTH_H

#include "lane_waiters.h"

struct depth {
    pthread_mutex_t lock; /* a leaf */
    struct link waiters;
    uint64_t used, epoch; /* bytes under way that began in this epoch */
    uint64_t mean_ns, unlimited_until;
};

/* An operation of length bytes. */
struct depth_use {
    struct waiter waiter;
    uint64_t length, epoch, since;
};

void depth_init(struct depth *depth);
void depth_destroy(struct depth *depth);

/* Whether an operation waits, and lets others wait. */
bool depth_counts(const struct iou_lane *lane, const struct op *op);

/* Wait until the operation may begin; and say that it has ended. */
void depth_enter(struct depth *depth, struct depth_use *use);
void depth_leave(struct depth *depth, const struct depth_use *use);

#endif
