/* SPDX-License-Identifier: Apache-2.0 */

/* The state of a lane, for its tasks and its owner; the lease of its ticket; the end of its connection (state.c). */

#ifndef IOUTIL_LANE_STATE_H
#define IOUTIL_LANE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/lane.h"

struct lane_state {
    atomic_bool refusing; /* no more requests are begun */
    atomic_bool leaving;  /* no more requests are read */
    atomic_bool broken;   /* no more bytes can be sent */
    atomic_bool rests;    /* no request has arrived: the lane may give its place to another connection */
    atomic_bool active;   /* a request runs, also while none of its operations is in storage */
    atomic_int error;
    atomic_uint_fast32_t running;  /* requests that have begun and were not answered */
    atomic_uint_fast64_t requests; /* requests that have begun */
};

/* Whether running requests have to end: the transfer was cancelled, or the connection broke. */
bool lane_canceled(const struct iou_lane *lane);

/* Whether no request may begin: the ticket has expired or was cancelled, the server stops, or the connection broke. */
bool lane_refuses(const struct iou_lane *lane);

/* Renew the ticket, because a request has ended. */
void lane_renew(struct iou_lane *lane);

/* Whether this lane has to give its place to a connection that waits. Takes one from iou_lanes_recall()'s count. */
bool lane_gives_place(struct iou_lane *lane);

/* Whether a request that has begun has to end: of a kind that does not finish requests, also when none may begin. */
bool lane_cuts(const struct iou_lane *lane);

/* Break the connection: its requests end at their next step, and nothing more is sent. Keeps the first error. */
void lane_break(struct iou_lane *lane, int error);

/* Wake all tasks that wait, so that they check the lane's state. */
void lane_wake(struct iou_lane *lane);

/* Break the connection if its peer is gone. */
void lane_look(struct iou_lane *lane);

/* Do the same, unless it was done within CHECK_NS. For the leader. */
void lane_check(struct iou_lane *lane);

#endif
