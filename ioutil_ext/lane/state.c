/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The state of a lane: the conditions that end it or its requests, the renewal of its ticket, and the end of its
 * connection, which wakes all of its tasks that wait.
 */

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/bucket.h"
#include "base/clock.h"
#include "lane/lane.h"
#include "quota/pool.h"

/*
 * A check that the peer is alive is valid for this time. A check before each change took 13 % more processor time for
 * random writes of 4 KiB over NBD to tmpfs (1.07 to 1.20, 7 pairs of rounds). The delay is short: a request that is
 * read late was sent 20 ms before.
 */
#define CHECK_NS 250000u

bool lane_canceled(const struct iou_lane *lane) {
    return __atomic_load_n(&lane->control->canceled, __ATOMIC_RELAXED);
}

bool lane_refuses(const struct iou_lane *lane) {
    return lane->state.refusing || lane_canceled(lane) ||
           now_ns() >= __atomic_load_n(&lane->lease->expires, __ATOMIC_RELAXED);
}

/* A ticket that was ended by hand is not renewed: IOU_LEASE_ENDED is in the word that is exchanged. */
void lane_renew(struct iou_lane *lane) {
    iou_lease *lease = lane->lease;
    uint64_t now = now_ns(), until = (now + lease->timeout) & ~(uint64_t)IOU_LEASE_ENDED;
    uint64_t expires = __atomic_load_n(&lease->expires, __ATOMIC_RELAXED);
    __atomic_store_n(&lease->active, now, __ATOMIC_RELAXED);
    while (expires < until && !(expires & IOU_LEASE_ENDED) &&
           !__atomic_compare_exchange_n(&lease->expires, &expires, until, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

bool lane_cuts(const struct iou_lane *lane) {
    return lane->kind->finishes ? lane_canceled(lane) : lane_refuses(lane);
}

/* ---- the end of the connection ---------------------------------------------------------------------------------- */

void lane_wake(struct iou_lane *lane) {
    loop_interrupt(&lane->tasks.loop);
    memory_wake(&lane->lanes->pool);
    if (lane->bucket)
        bucket_wake(lane->bucket);
    claims_cancel(&lane->handle->image->claims);
    iou_cancel_queued(lane->engine);
    if (lane->handle->ops->wake)
        lane->handle->ops->wake(lane->handle);
}

void lane_break(struct iou_lane *lane, int error) {
    int none = 0;
    atomic_compare_exchange_strong(&lane->state.error, &none, error);
    lane->state.broken = true;
    __atomic_store_n(&lane->control->canceled, 1, __ATOMIC_SEQ_CST); /* no answer can be sent */
    lane->state.leaving = true;
    shutdown(lane->socket.fd, SHUT_RDWR);
    lane_wake(lane);
}

/* Whether the peer is gone: a reset, or its end of a unix socket is closed. */
static bool is_gone(const struct iou_lane *lane) {
    struct pollfd polled = {.fd = lane->socket.fd};
    return poll(&polled, 1, 0) > 0;
}

void lane_look(struct iou_lane *lane) {
    if (!lane->state.broken && is_gone(lane))
        lane_break(lane, ECONNRESET);
}

void lane_check(struct iou_lane *lane) {
    uint64_t now = now_ns();
    if (now - lane->socket.checked_ns < CHECK_NS)
        return;
    lane->socket.checked_ns = now;
    lane_look(lane);
}
