/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The use of a lane's socket by all tasks: sending. A send waits at most for the lane's timeout without progress of the
 * peer. receive.c has the functions for the leader only.
 *
 * Short messages are collected in the outbox, which the loop sends before it sleeps. Longer ones are sent in turns.
 * Each turn sends the outbox first, so a stream of long messages does not delay short ones.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "lane/lane.h"
#include "tls/tls.h"

/* A task that waits for the peer to read checks the lane's state at this interval. */
#define SEND_LOOK_MS 100

/* ---- sending ---------------------------------------------------------------------------------------------------- */

static int await_room(struct iou_lane *lane) {
    int before = INT32_MAX, unsent = 0, waited = 0;
    while (!lane_canceled(lane)) {
        uint64_t look = now_ns() + SEND_LOOK_MS * UINT64_C(1000000);
        if (fiber_await(lane->socket.fd, POLLOUT, look))
            return 0;
        if (now_ns() < look) /* only the state of the lane may have changed */
            continue;
        if (ioctl(lane->socket.fd, SIOCOUTQ, &unsent) == -1)
            return errno;
        waited = unsent < before ? 0 : waited + SEND_LOOK_MS;
        before = unsent;
        if (waited >= lane->timeout_ms)
            return ETIMEDOUT;
    }
    return ECANCELED;
}

int socket_await_room(struct iou_lane *lane) {
    uint64_t since = work_wait(IOU_WAIT_PEER);
    int error = await_room(lane);
    work_go_on(IOU_WAIT_PEER, since);
    return error;
}

/* After a failure the connection is useless. */
static void break_after(struct iou_lane *lane, int error) {
    if (error)
        lane_break(lane, error);
}

void lane_await_reader(struct iou_lane *lane) {
    if (!lane->state.broken)
        break_after(lane, socket_await_room(lane));
}

static int64_t send_now(struct iou_lane *lane, struct iovec *parts, unsigned count) {
    int64_t sent = tls_send_parts(lane->socket.tls, lane->socket.fd, parts, count);
    if (sent > 0)
        lane->socket.sent += (uint64_t)sent;
    return sent;
}

/* Whether the peer has read so little since then that it pauses. */
static bool takes_little(uint64_t since, uint64_t taken) {
    uint64_t ms = (now_ns() - since) / 1000000;
    return ms >= LANE_PAUSE_MS && taken / LANE_PAUSE_BYTES < ms / LANE_PAUSE_MS;
}

/* Wait for room, or until the peer pauses. taken: bytes since then. Returns 0; EAGAIN: it pauses; or an errno. */
static int await_room_until_pause(struct iou_lane *lane, uint64_t since, uint64_t taken) {
    if (takes_little(since, taken))
        return EAGAIN;
    uint64_t now = work_wait(IOU_WAIT_PEER), until = now + LANE_PAUSE_MS * UINT64_C(1000000);
    short events = fiber_await(lane->socket.fd, POLLOUT, until);
    work_go_on(IOU_WAIT_PEER, now);
    return events || now_ns() < until ? 0 : EAGAIN;
}

/* Send all parts, or until the peer pauses. *all: how many bytes were sent. 0 or an errno. The caller has the turn. */
static int send_parts(struct iou_lane *lane, struct iovec *parts, unsigned count, bool until_pause, uint64_t *all) {
    uint64_t since = until_pause ? now_ns() : 0;
    int error = 0;
    *all = 0;
    while (count && !lane->state.broken && !error) {
        int64_t sent = send_now(lane, parts, count);
        error = sent >= 0 || sent == -EINTR ? 0
                : sent != -EAGAIN           ? (int)-sent
                : until_pause               ? await_room_until_pause(lane, since, *all)
                                            : socket_await_room(lane);
        if (sent >= 0) {
            *all += (uint64_t)sent;
            count = tls_skip_parts(&parts, count, (uint64_t)sent);
        }
    }
    return error == EAGAIN ? 0 : error;
}

/* ---- the turn --------------------------------------------------------------------------------------------------- */

/* Take the turn if nobody else has it. */
static bool take_free_turn(struct iou_lane *lane) {
    const struct fiber *fiber = fiber_current();
    if (lane->socket.sender && lane->socket.sender != fiber)
        return false;
    lane->socket.sender = fiber;
    lane->socket.sender_depth++;
    return true;
}

bool socket_take_turn_until_pause(struct iou_lane *lane) {
    struct waiter waiter;
    if (take_free_turn(lane))
        return true;
    waiter_join(&waiter, &lane->socket.waiters);
    for (;;) {
        uint64_t before = lane->socket.sent;
        if (waiter_sleep(&waiter, now_ns() + LANE_PAUSE_MS * UINT64_C(1000000)))
            return true;
        if (lane->socket.sent - before >= LANE_PAUSE_BYTES)
            continue;
        link_remove(&waiter.link);
        waiter_end(&waiter);
        return false;
    }
}

void socket_take_turn(struct iou_lane *lane) {
    struct waiter waiter;
    if (take_free_turn(lane))
        return;
    waiter_join(&waiter, &lane->socket.waiters);
    waiter_sleep(&waiter, FOR_EVER);
}

/* The first one that waits gets the turn. */
void socket_give_turn(struct iou_lane *lane) {
    if (--lane->socket.sender_depth)
        return;
    lane->socket.sender = NULL;
    lane->socket.begun = false;
    if (link_empty(&lane->socket.waiters))
        return;
    struct waiter *waiter = container_of(link_take(&lane->socket.waiters), struct waiter, link);
    lane->socket.sender = waiter->fiber;
    lane->socket.sender_depth = 1;
    waiter_wake(waiter);
}

/* ---- the outbox ------------------------------------------------------------------------------------------------- */

/* Send the outbox and wait for room, or until the peer pauses: then the rest stays. The caller has the turn. */
static int send_outbox(struct iou_lane *lane, bool until_pause) {
    struct lane_outbox *outbox = &lane->socket.outbox;
    bool paused = false;
    int error = 0;
    while (outbox->start < outbox->end && !error && !paused && !lane->state.broken) {
        struct iovec part = {.iov_base = outbox->bytes + outbox->start, .iov_len = outbox->end - outbox->start};
        uint64_t length = part.iov_len, sent;
        error = send_parts(lane, &part, 1, until_pause, &sent); /* meanwhile others may append */
        outbox->start += (uint32_t)sent;
        paused = sent < length;
    }
    if (outbox->start == outbox->end || error || lane->state.broken)
        outbox->start = outbox->end = 0;
    return error;
}

/* Send the outbox as a fiber of its own, which has the turn. The next lane_flush() handles its error. */
static void flush(struct fiber *fiber) {
    struct iou_lane *lane = container_of(fiber, struct iou_lane, socket.flusher);
    lane->socket.flush_error = send_outbox(lane, false);
    socket_give_turn(lane);
}

/* Begin to send the rest of the outbox. Its first message may be sent in part, so nobody else sends before. */
static int begin_flush(struct iou_lane *lane) {
    int error = loop_start(&lane->tasks.loop, &lane->socket.flusher, flush);
    if (error)
        return -error;
    lane->socket.sender = &lane->socket.flusher;
    lane->socket.sender_depth = 1;
    return 0;
}

static int flush_outbox(struct iou_lane *lane) {
    struct lane_outbox *outbox = &lane->socket.outbox;
    if (lane->socket.flush_error)
        return lane->socket.flush_error;
    if (outbox->start == outbox->end || lane->socket.sender || lane->state.broken)
        return 0; /* the next task with the turn sends it first */
    struct iovec part = {.iov_base = outbox->bytes + outbox->start, .iov_len = outbox->end - outbox->start};
    int64_t sent = send_now(lane, &part, 1);
    if (sent < 0 && sent != -EAGAIN && sent != -EINTR)
        return (int)-sent;
    if (sent > 0)
        outbox->start += (uint32_t)sent;
    if (outbox->start < outbox->end)
        return begin_flush(lane);
    outbox->start = outbox->end = 0;
    return 0;
}

void lane_flush(struct iou_lane *lane) {
    int error = flush_outbox(lane);
    if (!lane->state.broken)
        break_after(lane, error);
}

static uint64_t sum(const struct iovec *parts, unsigned count) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < count; i++)
        bytes += parts[i].iov_len;
    return bytes;
}

bool socket_has_room(const struct iou_lane *lane, uint64_t bytes) {
    return bytes <= LANE_SHORT && bytes <= LANE_OUTBOX - lane->socket.outbox.end &&
           lane->socket.sender != fiber_current();
}

/* Put a message into the outbox. False: there is no room, or the caller has the turn. */
static bool put_in_outbox(struct iou_lane *lane, const struct iovec *parts, unsigned count) {
    struct lane_outbox *outbox = &lane->socket.outbox;
    if (!socket_has_room(lane, sum(parts, count)))
        return false;
    if (!outbox->bytes && !(outbox->bytes = malloc(LANE_OUTBOX)))
        return false;
    for (unsigned i = 0; i < count; i++) {
        memcpy(outbox->bytes + outbox->end, parts[i].iov_base, parts[i].iov_len);
        outbox->end += (uint32_t)parts[i].iov_len;
    }
    return true;
}

/* Send parts in a turn, which begins with the outbox. Returns how many bytes were sent. */
static uint64_t send_in_turn(struct iou_lane *lane, struct iovec *parts, unsigned count, bool until_pause) {
    uint64_t sent = 0;
    socket_take_turn(lane);
    int error = lane->socket.begun ? 0 : send_outbox(lane, until_pause);
    if (!error && (lane->socket.begun || lane->socket.outbox.start == lane->socket.outbox.end)) {
        lane->socket.begun = true;
        error = send_parts(lane, parts, count, until_pause, &sent);
    }
    socket_give_turn(lane);
    break_after(lane, error);
    return sent;
}

void lane_send(struct iou_lane *lane, struct iovec *parts, unsigned count) {
    if (!put_in_outbox(lane, parts, count))
        send_in_turn(lane, parts, count, false);
}

void lane_send_one(struct iou_lane *lane, const void *message, size_t size) {
    struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = size};
    lane_send(lane, &part, 1);
}

uint64_t lane_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count) {
    uint64_t bytes = sum(parts, count);
    if (!put_in_outbox(lane, parts, count))
        return send_in_turn(lane, parts, count, true);
    for (unsigned i = 0; i < count; i++)
        parts[i].iov_len = 0;
    return bytes;
}
