/* SPDX-License-Identifier: Apache-2.0 */

/* Waiting for memory. The wait ends if the client is gone, the ticket has expired, or the timeout has passed. */

#include <errno.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/connection.h"
#include "lane/lane.h"
#include "zstd/windows.h"

/* A waiting thread checks at this interval whether its client is still there. */
#define LOOK_NS UINT64_C(1000000000)

/* Return the time of the next check, or the deadline if that is earlier. */
static uint64_t next_look(const struct claimant *claimant, uint64_t deadline) {
    const struct iou_lane *lane = claimant->lane;
    uint64_t look = min_u64(now_ns() + LOOK_NS, deadline);
    if (lane->kind->finishes)
        return look;
    return min_u64(look, __atomic_load_n(&lane->lease->expires, __ATOMIC_RELAXED));
}

/* Wait until other requests give memory back. */
static int await_memory(struct claimant *claimant) {
    struct iou_lane *lane = claimant->lane;
    uint64_t deadline = now_ns() + (uint64_t)lane->timeout_ms * 1000000;
    while (!waiter_sleep(&claimant->waiter, next_look(claimant, deadline))) {
        lane_look(lane);
        if (lane_cuts(lane))
            memory_give_up(claimant, -ECANCELED);
        else if (now_ns() >= deadline)
            memory_give_up(claimant, -ENOMEM);
    }
    return claimant->error;
}

static int get(struct claimant *claimant) {
    int error = memory_ask(claimant);
    if (error == -EAGAIN && claimant->patience != MEMORY_NOW) {
        uint64_t since = work_wait(IOU_WAIT_TURN);
        error = await_memory(claimant);
        work_go_on(IOU_WAIT_TURN, since);
    }
    return error;
}

int memory_get(struct iou_lane *lane, size_t size, enum memory_patience patience, struct memory **memory) {
    struct claimant claimant = {.lane = lane, .size = size, .patience = patience};
    int error = get(&claimant);
    *memory = claimant.memory;
    return error;
}

static int await_window(struct iou_lane *lane, iou_zstd *decoder) {
    uint64_t deadline = now_ns() + LANE_WINDOW_MS * UINT64_C(1000000);
    int error;
    while ((error = iou_zstd_admit(decoder, lane->lease->number)) == -EAGAIN) {
        lane_look(lane);
        if (lane_cuts(lane))
            return -ECANCELED;
        if (now_ns() >= deadline)
            return -ENOBUFS;
        window_await(LANE_MOMENT_MS);
    }
    return error;
}

int memory_get_window(struct iou_lane *lane, iou_zstd *decoder) {
    int error = iou_zstd_admit(decoder, lane->lease->number);
    if (error == -EAGAIN) {
        uint64_t since = work_wait(IOU_WAIT_TURN);
        error = await_window(lane, decoder);
        work_go_on(IOU_WAIT_TURN, since);
    }
    return error;
}
