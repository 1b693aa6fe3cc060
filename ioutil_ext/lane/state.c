/* SPDX-License-Identifier: Apache-2.0 */

/* The state of a lane: the conditions that end it or its requests, and the renewal of its ticket. */

#include "base/clock.h"
#include "lane/lane.h"

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

bool lane_gives_place(struct iou_lane *lane) {
    atomic_uint_fast32_t *wanted = &lane->lanes->wanted;
    uint_fast32_t count = *wanted;
    while (count && !atomic_compare_exchange_weak(wanted, &count, count - 1))
        ;
    return count;
}

bool lane_cuts(const struct iou_lane *lane) {
    return lane->kind->finishes ? lane_canceled(lane) : lane_refuses(lane);
}
