/* SPDX-License-Identifier: Apache-2.0 */

/* Waits of a lane before it moves bytes: for memory, and for the rate limit of its ticket (waits.c). */

#ifndef IOUTIL_LANE_WAITS_H
#define IOUTIL_LANE_WAITS_H

#include <stddef.h>
#include <stdint.h>

#include "api/lane.h"
#include "api/zstd.h"
#include "quota/pool.h"

/* How long a request waits for memory: not at all, or as long as the request may go on. */
enum memory_patience { MEMORY_NOW, MEMORY_WAIT };

/*
 * Get memory of at least `size` bytes. With MEMORY_WAIT, wait until the quotas of the lane, its ticket and its device
 * allow it, at most for the lane's timeout. A task that has memory must not wait for more. Returns 0, -EAGAIN if there
 * is none now (MEMORY_NOW), -ENOMEM if there was none in time, -EOVERFLOW if `size` is larger than any piece, or
 * -ECANCELED if the request ends.
 */
int lane_get_memory(struct iou_lane *lane, size_t size, enum memory_patience patience, struct memory **memory);
void lane_put_memory(struct iou_lane *lane, struct memory *memory);

/* Take the memory of a decoder (content/windows.c), and wait some seconds for it. It is not a part of the memory for
   data, so a task that has it may wait for pieces. Returns 0, -ENOBUFS if there was none in time, or -ECANCELED. */
int lane_get_window(struct iou_lane *lane, iou_zstd *decoder);

/* Return the most bytes that a piece of data should have: as many as the limit allows in an eighth of a second, or
   UINT64_MAX without a limit. */
uint64_t lane_rate_piece(const struct iou_lane *lane);

/* Take bytes from the rate limit, and wait until they may be moved. A task that has memory must not call this. The wait
   renews the ticket. Returns 0, or -ECANCELED if the request ends; the bytes are given back then. */
int lane_take_rate(struct iou_lane *lane, uint64_t bytes);

/* Give back bytes that were taken and not moved. */
void lane_give_back_rate(struct iou_lane *lane, uint64_t bytes);

#endif
