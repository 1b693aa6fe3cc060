/* SPDX-License-Identifier: Apache-2.0 */

/* A lane joins and leaves the state that all lanes share (lanes.c). */

#ifndef IOUTIL_LANE_LANES_H
#define IOUTIL_LANE_LANES_H

#include "api/lane.h"

/* Join and leave: the lane has a part in its ticket's quota and in its device's memory. -ENOMEM. */
int lanes_join(struct iou_lane *lane);
void lanes_leave(struct iou_lane *lane);

#endif
