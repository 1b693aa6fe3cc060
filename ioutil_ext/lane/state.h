/* SPDX-License-Identifier: Apache-2.0 */

/* How far a lane is, for all its threads and its owner (state.c); and the lease of its ticket. */

#ifndef IOUTIL_LANE_STATE_H
#define IOUTIL_LANE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/lane.h"

struct lane_state {
    atomic_bool refusing; /* no more requests are begun */
    atomic_bool leaving;  /* no more requests are read */
    atomic_bool broken;   /* nothing can be sent */
    atomic_bool rests;    /* it may be recalled: its client has asked for nothing that it would serve */
    atomic_bool active;   /* a request runs that is more than its operations */
    atomic_int error;
    atomic_uint_fast32_t running;  /* requests that were begun and not answered */
    atomic_uint_fast64_t requests; /* that were begun */
};

/* Whether nobody wants what runs: the transfer was cancelled, or the connection broke. */
bool lane_canceled(const struct iou_lane *lane);

/* Whether no request is begun: the ticket has expired or was cancelled, the server stops, or the connection broke. */
bool lane_refuses(const struct iou_lane *lane);

/* Renew the ticket: a request that used it has ended. */
void lane_renew(struct iou_lane *lane);

/* Whether another connection waits for the place of a lane, and gets this one's. */
bool lane_gives_place(struct iou_lane *lane);

/* Whether a request that has begun ends. */
bool lane_cuts(const struct iou_lane *lane);

#endif
