/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The connection of a lane (connection.c): sending, looking whether the peer is there, and ending it where something
 * fails.
 */

#ifndef IOUTIL_LANE_CONNECTION_H
#define IOUTIL_LANE_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "api/lane.h"

/* End the connection, because of error if it is the first one. */
void lane_break(struct iou_lane *lane, int error);

/* Let whoever waits look at the lane's state. */
void lane_wake(struct iou_lane *lane);

/* End the connection if its peer is gone. */
void lane_look(struct iou_lane *lane);

/* The same, unless it was looked at just now. For the leader. */
void lane_check(struct iou_lane *lane);

/* As socket_watch(); the end of the peer ends the connection. For the leader. */
void lane_watch(struct iou_lane *lane, bool received);

/* As socket_send() and socket_send_until_pause(), which returns how many bytes the peer has taken; failure ends the
   connection. */
void lane_send(struct iou_lane *lane, struct iovec *parts, unsigned count);
uint64_t lane_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* As socket_await_room(); failure ends the connection. */
void lane_await_reader(struct iou_lane *lane);

#endif
