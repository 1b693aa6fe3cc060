/* SPDX-License-Identifier: Apache-2.0 */

/* The socket of a lane, for any thread (socket.c). These functions do not break the connection; connection.h does. */

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
 * A peer pauses if it reads less than LANE_PAUSE_BYTES in LANE_PAUSE_MS. A full socket has room again only when much of
 * it was read: 150 KiB of a unix socket, a third of TCP's largest buffer of 4 MiB. So a peer that reads 5 MB/s does not
 * pause.
 */
#define LANE_PAUSE_MS 250u
#define LANE_PAUSE_BYTES MIB

/* The socket of a lane. */
struct lane_socket {
    int fd, wake_fd;
    iou_tls *tls;  /* NULL: the connection has no TLS */
    int owners_fd; /* the descriptor of tls before and after the lane */
    atomic_uint_fast64_t received, sent;
    pthread_mutex_t send_lock; /* the turn to send; recursive */
    uint64_t checked_ns;       /* for the leader: the last check that the peer is alive; connection.c */
};

/* Send all parts. Other threads do not send in between. Returns 0 or an errno; after that the connection is useless. */
int socket_send(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* Send until the peer pauses. *sent: how many bytes were sent. The parts are moved to the rest. */
int socket_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count, uint64_t *sent);

/* Take the turn to send, which keeps other threads from sending until it is given back. The first function returns
   false if another thread has the turn and the peer pauses. */
bool socket_take_turn_until_pause(struct iou_lane *lane);
void socket_take_turn(struct iou_lane *lane);
void socket_give_turn(struct iou_lane *lane);
void socket_init_turns(struct iou_lane *lane);

/* Wait until the socket has room; returns 0 or an errno. Bytes that leave the kernel's buffer are progress, too: a slow
   reader makes room only seldom. */
int socket_await_room(struct iou_lane *lane);

/* Whether the peer is gone: a reset, or its end of a unix socket is closed. */
bool socket_is_gone(const struct iou_lane *lane);

/* Wake the leader if it waits for the peer. */
void socket_wake(struct iou_lane *lane);

#endif
