/* SPDX-License-Identifier: Apache-2.0 */

/* What any thread may do with the socket of a lane (socket.c). Nothing here ends the connection: connection.h. */

#ifndef IOUTIL_LANE_SOCKET_H
#define IOUTIL_LANE_SOCKET_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "api/lane.h"
#include "base/numbers.h"

/*
 * The same for a peer that does not read, or less than this in that time: it pauses. A socket has room only when much
 * of it was read: of a unix socket 150 KiB, of TCP's longest buffers a third of 4 MiB. So what reads 5 MB/s does not
 * pause.
 */
#define LANE_PAUSE_MS 250u
#define LANE_PAUSE_BYTES MIB

/* The connection, as any thread may use it. */
struct lane_socket {
    int fd, wake_fd;
    iou_tls *tls;  /* NULL: the connection has none */
    int owners_fd; /* of tls, before and after the lane */
    atomic_uint_fast64_t received, sent;
    pthread_mutex_t send_lock; /* whose turn it is to send: recursive */
    uint64_t checked_ns;       /* the leader's: when the peer was alive; connection.c */
};

/* Send all, whole, in one go with regard to other threads. 0 or an errno: the connection is of no use any more. */
int socket_send(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* The same until the peer pauses. *sent: how many bytes it has taken; what is left of the parts is in them. */
int socket_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count, uint64_t *sent);

/* Keep other threads from sending, until the turn is given back. False: the peer pauses, and it is another one's turn.
 */
bool socket_take_turn_until_pause(struct iou_lane *lane);
void socket_take_turn(struct iou_lane *lane);
void socket_give_turn(struct iou_lane *lane);
void socket_init_turns(struct iou_lane *lane);

/* Wait until more can be sent; returns 0 or an errno. Progress is also what leaves the kernel: a slow reader makes room
   only seldom. */
int socket_await_room(struct iou_lane *lane);

/* Whether the peer is gone: a reset, or the other end of a unix socket closed. */
bool socket_is_gone(const struct iou_lane *lane);

/* Wake the leader where it waits for the peer. */
void socket_wake(struct iou_lane *lane);

#endif
