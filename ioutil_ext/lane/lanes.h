/* SPDX-License-Identifier: Apache-2.0 */

/* How a lane comes to what all lanes share, and leaves it (lanes.c). */

#ifndef IOUTIL_LANE_LANES_H
#define IOUTIL_LANE_LANES_H

#include <stdbool.h>

#include "api/lane.h"

/* Enter and leave, with a share of memory and threads. -ENOMEM. */
int lanes_join(struct iou_lane *lane);
void lanes_leave(struct iou_lane *lane);

/* Whether the lane is the only one of its ticket. */
bool lanes_is_alone(struct iou_lane *lane);

#endif
