/* SPDX-License-Identifier: Apache-2.0 */

/* Receiving (receive.c); for the leader only, but for the first two functions. */

#ifndef IOUTIL_LANE_RECEIVE_H
#define IOUTIL_LANE_RECEIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "api/lane.h"

#define LANE_STAGING ((uint64_t)IOU_LANE_MAX_STAGED)

/*
 * For so long a peer may keep memory waiting that is lent for a piece. A peer that sends less than the staging in it,
 * 1.3 MB/s, has none while it is waited for; to one that sends 20 MB/s a piece of 1 MiB is lent as long as it takes.
 */
#define LANE_MOMENT_MS 50u

/* Bytes that were received and not taken. */
struct lane_staging {
    char bytes[LANE_STAGING];
    uint32_t start, end;
    uint32_t refused; /* how often something was received after the end */
    uint64_t look_ns; /* for how long the next header is looked for before the leader sleeps */
};

/* Make it what receiving needs. -errno */
int socket_init(struct iou_lane *lane);

/* Make it what it was. */
void socket_restore(struct iou_lane *lane);

/*
 * Receive more behind what is staged, until so many bytes are; at least one. 0: no more comes, of the client or because
 * the lane ends. -ETIMEDOUT after ms (-1: never), -ECANCELED unless ms is -1, or the socket's -errno. ms of 0 does not
 * wait: -EAGAIN.
 */
ssize_t socket_stage(struct iou_lane *lane, uint32_t most, int ms);

/* For how long bytes of a payload are waited for. */
enum socket_patience { SOCKET_NOW, SOCKET_MOMENT, SOCKET_LONG };

/*
 * Receive length bytes of a payload, or what comes of them in time; NULL: drop them. Returns how many came; if fewer,
 * *error is as above, -EAGAIN unless it waits long.
 */
uint64_t socket_receive(struct iou_lane *lane, char *memory, uint64_t length, enum socket_patience patience,
                        int *error);

/* Stage the bytes that were just received, so that they are received again. Nothing is staged now. */
void socket_put_back(struct iou_lane *lane, const char *memory, size_t size);

/* Stage so many bytes of a payload; false: they do not come, and *error is as above. */
bool socket_gather(struct iou_lane *lane, uint32_t least, int *error);

/*
 * Wait until somebody wakes the leader, or the peer is gone: true. Over TLS, who sends no more does not listen either:
 * received: all of his request is here, so an end is not in the middle of it.
 */
bool socket_watch(struct iou_lane *lane, bool received);

#endif
