/* SPDX-License-Identifier: Apache-2.0 */

/* The limit on the rate of a lane's ticket (rate.c). */

#ifndef IOUTIL_LANE_RATE_H
#define IOUTIL_LANE_RATE_H

#include <stdint.h>

#include "api/lane.h"

/* Return the most bytes that a piece of data should have: those of an eighth of a second; UINT64_MAX: no limit. */
uint64_t rate_piece(const struct iou_lane *lane);

/*
 * Take bytes of the limit, and wait until they may be moved. A task that has memory, or a place that others need,
 * must not call this. The wait renews the ticket. -ECANCELED: the request ends, and the bytes are given back.
 */
int rate_take(struct iou_lane *lane, uint64_t bytes);

/* Give back bytes that were taken, and not moved. */
void rate_give_back(struct iou_lane *lane, uint64_t bytes);

#endif
