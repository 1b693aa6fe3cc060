/* SPDX-License-Identifier: Apache-2.0 */

/* The counters and reports of a lane (counts.c). */

#ifndef IOUTIL_LANE_COUNTS_H
#define IOUTIL_LANE_COUNTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "api/lane.h"
#include "image/operation.h"

struct lane_counts {
    int event_fd;
    atomic_uint_fast64_t zeroed[IOU_METHODS], read, written, failed;
    pthread_mutex_t lock; /* guards all below; a leaf */
    iou_lane_report reports[IOU_LANE_REPORTS];
    uint32_t reports_count;
    uint64_t reports_lost;
    iou_range *ranges;
    uint32_t ranges_count, ranges_size;
};

void counts_free(struct iou_lane *lane);

/* Add a range of bytes that were transferred. Waits for the owner if there are too many ranges. */
void counts_add(struct iou_lane *lane, uint64_t start, uint64_t end);

/* Add a report of an operation if it has failed (error), was slow, or has given up a method. */
void counts_report(struct iou_lane *lane, const struct op *op, int error);

/* Make the eventfd readable, so that the owner fetches counters and reports. */
void lane_notify(struct iou_lane *lane);

#endif
