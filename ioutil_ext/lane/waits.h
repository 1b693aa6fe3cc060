/* SPDX-License-Identifier: Apache-2.0 */

/* What a lane waits for before it moves bytes: memory, and the limit on the rate of its ticket (waits.c). */

#ifndef IOUTIL_LANE_WAITS_H
#define IOUTIL_LANE_WAITS_H

#include <stddef.h>
#include <stdint.h>

#include "api/lane.h"
#include "api/zstd.h"
#include "quota/pool.h"

/* Whether a request waits for memory: not at all, or as long as it may go on. */
enum memory_patience { MEMORY_NOW, MEMORY_WAIT };

/*
 * Get memory of at least size bytes. With MEMORY_WAIT, wait until the quotas of the lane, its ticket and its device
 * allow it, at most for the lane's timeout. A task that has memory must not wait for more. -EAGAIN: there is none now
 * (MEMORY_NOW); -ENOMEM: there was none in time; -EOVERFLOW: size is larger than any piece can be; -ECANCELED: the
 * request ends.
 */
int lane_get_memory(struct iou_lane *lane, size_t size, enum memory_patience patience, struct memory **memory);
void lane_put_memory(struct iou_lane *lane, struct memory *memory);

/*
 * Take the memory of a decoder (content/windows.c), and wait for it for some seconds. It is apart: a task that has it
 * may wait for pieces. -ENOBUFS: there was none in time; -ECANCELED.
 */
int lane_get_window(struct iou_lane *lane, iou_zstd *decoder);

/* Return the most bytes that a piece of data should have: those of an eighth of a second; UINT64_MAX: no limit. */
uint64_t lane_rate_piece(const struct iou_lane *lane);

/*
 * Take bytes of the limit, and wait until they may be moved. A task that has memory must not call this. The wait renews
 * the ticket. -ECANCELED: the request ends, and the bytes are given back.
 */
int lane_take_rate(struct iou_lane *lane, uint64_t bytes);

/* Give back bytes that were taken, and not moved. */
void lane_give_back_rate(struct iou_lane *lane, uint64_t bytes);

#endif
