/* SPDX-License-Identifier: Apache-2.0 */

/* Sending on the socket of a lane, for all tasks (socket.c). A failure breaks the connection. */

#ifndef IOUTIL_LANE_SOCKET_H
#define IOUTIL_LANE_SOCKET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "api/lane.h"
#include "base/link.h"
#include "base/numbers.h"

/*
 * A peer pauses if it reads less than LANE_PAUSE_BYTES in LANE_PAUSE_MS. A full socket has room again only when much of
 * it was read: 150 KiB of a unix socket, a third of TCP's largest buffer of 4 MiB. So a peer that reads 5 MB/s does not
 * pause.
 */
#define LANE_PAUSE_MS 250u
#define LANE_PAUSE_BYTES MIB

/*
 * The outbox: short messages of a round, which are copied and go to the socket in one call. A longer message is sent
 * from where it is: to copy 16 KiB takes as long as a call.
 */
#define LANE_OUTBOX (64 * KIB)
#define LANE_SHORT (16 * KIB)

struct lane_outbox {
    char *bytes; /* NULL: there was no message yet */
    uint32_t start, end;
};

/* The socket of a lane. */
struct lane_socket {
    int fd;
    iou_tls *tls;  /* NULL: the connection has no TLS */
    int owners_fd; /* the descriptor of tls before and after the lane */
    atomic_uint_fast64_t received, sent;
    struct lane_outbox outbox;
    const struct fiber *sender; /* it has the turn to send; NULL: none has */
    uint32_t sender_depth;      /* how often it has taken it */
    bool begun;                 /* it has begun to send its message, which nothing may interrupt */
    struct link waiters;        /* for the turn */
    struct fiber flusher;       /* sends the outbox when the socket is full */
    int flush_error;            /* errno of it */
    bool emptied;               /* for the leader: the last receive has emptied the socket; receive.c */
    uint64_t checked_ns;        /* for the leader: the last check that the peer is alive; state.c */
};

/* Send all parts, in one piece. A short message may still be in the outbox: lane_flush(). */
void lane_send(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* Whether a message of so many bytes would go to the outbox, so that sending does not wait. */
bool socket_has_room(const struct iou_lane *lane, uint64_t bytes);

/* Send until the peer pauses. Returns how many bytes were sent. The parts are moved to the rest. */
uint64_t lane_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* Send what is in the outbox, as far as the socket has room; the rest is sent when it has. For the loop. */
void lane_flush(struct iou_lane *lane);

/* Take the turn to send, which keeps other tasks from sending until it is given back. The first function returns
   false if another task has the turn and the peer pauses. */
bool socket_take_turn_until_pause(struct iou_lane *lane);
void socket_take_turn(struct iou_lane *lane);
void socket_give_turn(struct iou_lane *lane);

/* Wait until the socket has room; returns 0 or an errno, after which the caller breaks the connection. Bytes that leave
   the kernel's buffer are progress, too: a slow reader makes room only seldom. */
int socket_await_room(struct iou_lane *lane);

/* Do the same, unless the connection is broken, and break it after an error. */
void lane_await_reader(struct iou_lane *lane);

#endif
