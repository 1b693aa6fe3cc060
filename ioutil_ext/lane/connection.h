/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The connection of a lane (connection.c): sending, checking whether the peer is still there, and ending the connection
 * after a failure.
 */

#ifndef IOUTIL_LANE_CONNECTION_H
#define IOUTIL_LANE_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "api/lane.h"

/* Break the connection: its requests end at their next step, and nothing more is sent. Keeps the first error. */
void lane_break(struct iou_lane *lane, int error);

/* Wake all tasks that wait, so that they check the lane's state. */
void lane_wake(struct iou_lane *lane);

/* Break the connection if its peer is gone. */
void lane_look(struct iou_lane *lane);

/* Do the same, unless it was done within CHECK_NS. For the leader. */
void lane_check(struct iou_lane *lane);

/* As socket_watch(); breaks the connection if the peer is gone. For the leader. */
void lane_watch(struct iou_lane *lane, bool received);

/* As socket_send() and socket_send_until_pause(); the latter returns how many bytes were sent. A failure breaks the
   connection. */
void lane_send(struct iou_lane *lane, struct iovec *parts, unsigned count);
uint64_t lane_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* As socket_await_room() and socket_flush(). A failure breaks the connection. */
void lane_await_reader(struct iou_lane *lane);
void lane_flush(struct iou_lane *lane);

#endif
