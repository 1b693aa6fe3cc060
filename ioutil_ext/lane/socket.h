/* SPDX-License-Identifier: Apache-2.0 */

/* The socket of a lane: sending, where a failure breaks the connection (socket.c), and receiving (receive.c). */

#ifndef IOUTIL_LANE_SOCKET_H
#define IOUTIL_LANE_SOCKET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "api/lane.h"
#include "base/fiber.h"
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
void lane_send_one(struct iou_lane *lane, const void *message, size_t size);

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

/* ---- receive.c -------------------------------------------------------------------------------------------------- */

/* Receiving (receive.c). For the leader only, except socket_init() and socket_restore(). */

#define LANE_STAGING ((uint64_t)IOU_LANE_MAX_STAGED)

/*
 * A moment: for so long, memory of a piece may wait for bytes of the peer. A peer that sends less than the staging in
 * it (1.3 MB/s) has no memory while the lane waits. A peer that sends 20 MB/s keeps a piece of 1 MiB until it is full.
 */
#define LANE_MOMENT_MS 50u
#define LANE_MOMENT_NS (LANE_MOMENT_MS * UINT64_C(1000000))

/* The staging: bytes that were received and not taken. */
struct lane_staging {
    char bytes[LANE_STAGING];
    uint32_t start, end;
    uint32_t refused; /* how often bytes were received after the lane's last request */
};

/* Return how many bytes are staged, and the first one. */
static inline uint32_t staged(const struct lane_staging *staging) {
    return staging->end - staging->start;
}

static inline char *staged_bytes(struct lane_staging *staging) {
    return staging->bytes + staging->start;
}

/* Let TLS use the lane's descriptor of the socket, which is not blocking; and the owner's again. */
void socket_init(struct iou_lane *lane);
void socket_restore(struct iou_lane *lane);

/*
 * Receive at least one byte behind the staged ones, until at most `most` are staged. 0: the client has ended the
 * stream, or the lane ends. -ETIMEDOUT after ms (-1: never); -ECANCELED unless ms is -1; or the socket's -errno. With
 * ms of 0 it does not wait: -EAGAIN.
 */
ssize_t socket_stage(struct iou_lane *lane, uint32_t most, int ms);

/* How long to wait for bytes of a payload: for LANE_MOMENT_MS, or for the timeout without progress. */
enum socket_patience { SOCKET_MOMENT, SOCKET_LONG };

/*
 * Receive length bytes of a payload, or those that come in time. memory: NULL: discard them. Returns how many came. If
 * fewer, *error is as above; after the wait it is -EAGAIN, with SOCKET_LONG -ETIMEDOUT.
 */
uint64_t socket_receive(struct iou_lane *lane, char *memory, uint64_t length, enum socket_patience patience,
                        int *error);

/* Whether bytes since then, for longer than the timeout, came at less than a least rate. */
bool socket_is_too_slow(const struct iou_lane *lane, uint64_t since, uint64_t bytes);

/* Put bytes that were just received into the staging, which is empty. The next receive gets them again. */
void socket_put_back(struct iou_lane *lane, const char *memory, size_t size);

/* Receive until at least so many bytes of a payload are staged. False: they do not come, and *error is as above. */
bool socket_gather(struct iou_lane *lane, uint32_t least, int *error);

/*
 * Wait until the leader is disturbed, or break the connection because the peer is gone. A TLS client that has closed
 * its sending side cannot receive either. received: the whole request is here, so such a close is not within the
 * request.
 */
void lane_watch(struct iou_lane *lane, bool received);

#endif
