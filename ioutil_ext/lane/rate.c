/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Waiting for the limit on the rate. Only the leader of a lane waits, before it has memory: the peer's bytes stay in
 * its socket, which TCP slows down. The wait is not one for the peer, so that no timeout counts it.
 */

#include <errno.h>

#include "base/bucket.h"
#include "base/numbers.h"
#include "lane/connection.h"
#include "lane/lane.h"
#include "lane/rate.h"

/* A waiting thread checks at this interval whether its client is still there, and its tenant's rate another one. */
#define LOOK_NS UINT64_C(250000000)

#define PIECES_PER_SECOND 8

uint64_t rate_piece(const struct iou_lane *lane) {
    uint64_t rate = lane->bucket ? bucket_rate(lane->bucket) : 0;
    return rate ? rate / PIECES_PER_SECOND : UINT64_MAX;
}

static int await_rate(struct iou_lane *lane, const iou_due *due) {
    for (;;) {
        uint64_t wakes = bucket_wakes(lane->bucket), ns = iou_bucket_left(lane->bucket, due);
        if (lane_cuts(lane))
            return -ECANCELED;
        if (ns == 0 || lane->state.leaving) /* an NBD server that stops: no further request is read */
            return 0;
        lane_renew(lane); /* the request is a use of the ticket */
        bucket_sleep(lane->bucket, wakes, min_u64(ns, LOOK_NS));
        lane_look(lane);
    }
}

int rate_take(struct iou_lane *lane, uint64_t bytes) {
    iou_due due;
    if (!lane->bucket || iou_bucket_take(lane->bucket, bytes, &due) == 0)
        return 0;
    uint64_t since = work_wait(IOU_WAIT_LIMIT);
    int error = await_rate(lane, &due);
    work_go_on(IOU_WAIT_LIMIT, since);
    iou_bucket_waited(lane->bucket);
    if (error)
        rate_give_back(lane, bytes);
    return error;
}

void rate_give_back(struct iou_lane *lane, uint64_t bytes) {
    if (lane->bucket && bytes)
        iou_bucket_give_back(lane->bucket, bytes);
}
