/* SPDX-License-Identifier: Apache-2.0 */

/* Receiving (receive.c). For the leader only, except the first two functions. */

#ifndef IOUTIL_LANE_RECEIVE_H
#define IOUTIL_LANE_RECEIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "api/lane.h"

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
