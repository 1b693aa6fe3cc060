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
 * A peer pauses if it reads less than LANE_PAUSE_BYTES in LANE_PAUSE_MS. A full socket has room again only when the
 * peer has read much of it: 150 KiB of a unix socket, a third of TCP's largest buffer of 4 MiB. So a peer that reads 5
 * MB/s does not pause.
 */
#define LANE_PAUSE_MS 250u
#define LANE_PAUSE_BYTES MIB

/* The outbox contains copies of the short messages of a round, which go to the socket in one call. A longer message is
   sent without a copy, because a copy of 16 KiB takes as long as a call. */
#define LANE_OUTBOX (64 * KIB)
#define LANE_SHORT (16 * KIB)

struct lane_outbox {
    char *bytes; /* NULL before the first message */
    uint32_t start, end;
};

/* The socket of a lane. */
struct lane_socket {
    int fd;
    iou_tls *tls;  /* or NULL */
    int owners_fd; /* the descriptor that tls uses before and after the lane */
    atomic_uint_fast64_t received, sent;
    struct lane_outbox outbox;
    const struct fiber *sender; /* the fiber that has the turn to send, or NULL */
    uint32_t sender_depth;      /* how often the sender has taken the turn */
    bool begun;                 /* the sender has begun to send its message, which nothing may interrupt */
    struct link waiters;        /* waiting for the turn */
    struct fiber flusher;       /* sends the outbox when the socket is full */
    int flush_error;            /* errno of the flusher */
    bool emptied;               /* for the leader: the last receive has emptied the socket; receive.c */
    uint64_t checked_ns;        /* for the leader: the last check that the peer is alive; state.c */
};

/* Send all parts, with nothing in between. A short message may stay in the outbox until lane_flush(). */
void lane_send(struct iou_lane *lane, struct iovec *parts, unsigned count);
void lane_send_one(struct iou_lane *lane, const void *message, size_t size);

/* Return whether a message of this many bytes would go to the outbox, so that sending it does not wait. */
bool socket_has_room(const struct iou_lane *lane, uint64_t bytes);

/* Send until the peer pauses. Returns how many bytes were sent, and moves the parts past them. */
uint64_t lane_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* Send the outbox as far as the socket has room, and the rest as soon as it has. For the loop. */
void lane_flush(struct iou_lane *lane);

/* Take the turn to send, which keeps other tasks from sending until it is given back. socket_take_turn_until_pause()
   returns false if another task has the turn and the peer pauses. */
bool socket_take_turn_until_pause(struct iou_lane *lane);
void socket_take_turn(struct iou_lane *lane);
void socket_give_turn(struct iou_lane *lane);

/* Wait until the socket has room. Returns 0, or an errno with which the caller breaks the connection. Bytes that leave
   the kernel's buffer count as progress, because a slow reader seldom makes room. */
int socket_await_room(struct iou_lane *lane);

/* Do the same, unless the connection is broken. After an error, break it. */
void lane_await_reader(struct iou_lane *lane);

/* ---- receive.c -------------------------------------------------------------------------------------------------- */

/* Receiving (receive.c). For the leader only, except socket_init() and socket_restore(). */

#define LANE_STAGING ((uint64_t)IOU_LANE_MAX_STAGED)

/* How long memory of a piece may wait for bytes of the peer. If a peer sends less than the staging in this time (1.3
   MB/s), it has no memory while the lane waits. If it sends 20 MB/s, it keeps a piece of 1 MiB until that is full. */
#define LANE_MOMENT_MS 50u
#define LANE_MOMENT_NS (LANE_MOMENT_MS * UINT64_C(1000000))

/* The staging: bytes that were received and not used yet. */
struct lane_staging {
    char bytes[LANE_STAGING];
    uint32_t start, end;
    uint32_t refused; /* how often bytes were received after the lane's last request */
};

/* Return how many bytes are staged, and the address of the first one. */
static inline uint32_t staged(const struct lane_staging *staging) {
    return staging->end - staging->start;
}

static inline char *staged_bytes(struct lane_staging *staging) {
    return staging->bytes + staging->start;
}

/* Let TLS use the lane's descriptor of the socket, which is non-blocking. socket_restore() lets it use the owner's
   again. */
void socket_init(struct iou_lane *lane);
void socket_restore(struct iou_lane *lane);

/*
 * Receive at least one byte behind the staged ones, until at most `most` are staged. Returns how many, or 0 if the
 * client has ended the stream or the lane ends. Returns -ETIMEDOUT after `ms`, -ECANCELED, or the socket's -errno. With
 * -1 for `ms` there is no timeout and no -ECANCELED. With 0 it does not wait, and returns -EAGAIN.
 */
ssize_t socket_stage(struct iou_lane *lane, uint32_t most, int ms);

/* How long to wait for bytes of a payload: for LANE_MOMENT_MS, or for the timeout without progress. */
enum socket_patience { SOCKET_MOMENT, SOCKET_LONG };

/*
 * Receive `length` bytes of a payload, or as many as arrive in time. If `memory` is NULL, they are discarded. Returns
 * how many arrived. If these are fewer, *error has an errno of socket_stage(), or after the wait -EAGAIN, or -ETIMEDOUT
 * with SOCKET_LONG.
 */
uint64_t socket_receive(struct iou_lane *lane, char *memory, uint64_t length, enum socket_patience patience,
                        int *error);

/* Return whether `bytes` in the time from `since` on are too few: the time is longer than the timeout, and their rate
   is below the minimum. */
bool socket_is_too_slow(const struct iou_lane *lane, uint64_t since, uint64_t bytes);

/* Put bytes that were just received into the staging, which is empty. The next receive gets them again. */
void socket_put_back(struct iou_lane *lane, const char *memory, size_t size);

/* Receive until at least `least` bytes of a payload are staged. Returns false if they do not arrive, with *error as
   above. */
bool socket_gather(struct iou_lane *lane, uint32_t least, int *error);

/*
 * Wait until the leader is disturbed. Break the connection if the peer is gone. A TLS client that has closed its
 * sending side cannot receive either. Pass `received` if the whole request has arrived, so such a close does not cut
 * the request.
 */
void lane_watch(struct iou_lane *lane, bool received);

#endif
