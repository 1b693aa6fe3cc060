/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The waits of a lane for shared resources. They end if the client is gone, the ticket has expired, or the timeout has
 * passed.
 */

#include <errno.h>

#include "base/bucket.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "content/zstd.h"
#include "lane/lane.h"
#include "lane/waits.h"

/* A request that waits for memory checks at this interval whether its client is still there. */
#define MEMORY_LOOK_NS UINT64_C(1000000000)

/*
 * The longest wait of a request for the memory of a decoder. Decoders with the bytes of a fast link end frames of a MiB
 * within some ms, and those that rest are ended after 250 ms. A client that would wait longer is better off without
 * compression.
 */
#define WINDOW_MS 2000u

/* A request that waits for the rate limit does the same at this interval, and checks whether its tenant's rate has
   changed. */
#define RATE_LOOK_NS UINT64_C(250000000)

#define PIECES_PER_SECOND 8

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* Return the time of the next check, or the deadline if that is earlier. */
static uint64_t next_look(const struct iou_lane *lane, uint64_t deadline) {
    uint64_t look = min_u64(now_ns() + MEMORY_LOOK_NS, deadline);
    if (lane->kind->finishes)
        return look;
    return min_u64(look, __atomic_load_n(&lane->lease->expires, __ATOMIC_RELAXED));
}

/* Wait until other requests give memory back. */
static int await_memory(struct iou_lane *lane, struct claimant *claimant) {
    uint64_t deadline = now_ns() + (uint64_t)lane->timeout_ms * 1000000;
    while (!waiter_sleep(&claimant->waiter, next_look(lane, deadline))) {
        lane_look(lane);
        if (lane_cuts(lane))
            memory_give_up(claimant, -ECANCELED);
        else if (now_ns() >= deadline)
            memory_give_up(claimant, -ENOMEM);
    }
    return claimant->error;
}

int lane_get_memory(struct iou_lane *lane, size_t size, enum memory_patience patience, struct memory **memory) {
    struct claimant claimant = {.user = &lane->memory, .size = size, .waits = patience == MEMORY_WAIT};
    int error = memory_ask(&claimant);
    if (error == -EAGAIN && claimant.waits) {
        uint64_t since = work_wait(IOU_WAIT_TURN);
        error = await_memory(lane, &claimant);
        work_go_on(IOU_WAIT_TURN, since);
    }
    *memory = claimant.memory;
    return error;
}

void lane_put_memory(struct iou_lane *lane, struct memory *memory) {
    memory_put(&lane->memory, memory);
}

static int await_window(struct iou_lane *lane, iou_zstd *decoder) {
    uint64_t deadline = now_ns() + WINDOW_MS * UINT64_C(1000000);
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

int lane_get_window(struct iou_lane *lane, iou_zstd *decoder) {
    int error = iou_zstd_admit(decoder, lane->lease->number);
    if (error == -EAGAIN) {
        uint64_t since = work_wait(IOU_WAIT_TURN);
        error = await_window(lane, decoder);
        work_go_on(IOU_WAIT_TURN, since);
    }
    return error;
}

/* ---- the limit on the rate -------------------------------------------------------------------------------------- */

uint64_t lane_rate_piece(const struct iou_lane *lane) {
    uint64_t rate = lane->bucket ? bucket_rate(lane->bucket) : 0;
    return rate ? rate / PIECES_PER_SECOND : UINT64_MAX;
}

/*
 * Only the leader of a lane waits, before it has memory: the peer's bytes stay in its socket, which TCP slows down. The
 * lane does not wait for the peer, so no timeout includes this wait.
 */
static int await_rate(struct iou_lane *lane, const iou_due *due) {
    for (;;) {
        uint64_t wakes = bucket_wakes(lane->bucket), ns = iou_bucket_left(lane->bucket, due);
        if (lane_cuts(lane))
            return -ECANCELED;
        if (ns == 0 || lane->state.leaving) /* an NBD server that stops: no further request is read */
            return 0;
        lane_renew(lane); /* the request is a use of the ticket */
        bucket_sleep(lane->bucket, wakes, min_u64(ns, RATE_LOOK_NS));
        lane_look(lane);
    }
}

int lane_take_rate(struct iou_lane *lane, uint64_t bytes) {
    iou_due due;
    if (!lane->bucket || iou_bucket_take(lane->bucket, bytes, &due) == 0)
        return 0;
    uint64_t since = work_wait(IOU_WAIT_LIMIT);
    int error = await_rate(lane, &due);
    work_go_on(IOU_WAIT_LIMIT, since);
    iou_bucket_waited(lane->bucket);
    if (error)
        lane_give_back_rate(lane, bytes);
    return error;
}

void lane_give_back_rate(struct iou_lane *lane, uint64_t bytes) {
    if (lane->bucket && bytes)
        iou_bucket_give_back(lane->bucket, bytes);
}
