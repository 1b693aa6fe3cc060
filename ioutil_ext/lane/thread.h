/* SPDX-License-Identifier: Apache-2.0 */

/* The thread of a lane (thread.c). */

#ifndef IOUTIL_LANE_THREAD_H
#define IOUTIL_LANE_THREAD_H

#include "api/lane.h"

/* Make the loop, and start the thread with the first task, which leads. -EAGAIN: no thread can be started; -errno. */
int lane_thread_start(struct iou_lane *lane);

#endif
