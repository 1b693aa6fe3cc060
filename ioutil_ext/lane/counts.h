/* SPDX-License-Identifier: Apache-2.0 */

/* What a lane tells of itself (counts.c). */

#ifndef IOUTIL_LANE_COUNTS_H
#define IOUTIL_LANE_COUNTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "api/lane.h"
#include "image/operation.h"

struct lane_counts {
    int event_fd;
    atomic_uint_fast64_t zeroed[IOU_METHODS];
    pthread_mutex_t lock; /* of all below; a leaf */
    pthread_cond_t fetched;
    iou_lane_report reports[IOU_LANE_REPORTS];
    uint32_t reports_count;
    uint64_t reports_lost;
    iou_range *ranges;
    uint32_t ranges_count, ranges_size;
};

void counts_free(struct iou_lane *lane);
void counts_add(struct iou_lane *lane, uint64_t start, uint64_t end);
void counts_wake(struct iou_lane *lane);

/* Tell what storage did, if somebody should know: error, or that it was slow, or gave something up. */
void counts_report(struct iou_lane *lane, const struct op *op, int error);

/* Tell the owner that there is something to see. */
void lane_notify(struct iou_lane *lane);

#endif
