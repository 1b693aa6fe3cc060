/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The leader's use of a lane's socket: receiving. It waits for the peer at most for the lane's timeout, except for the
 * next request, for which it waits without a limit.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/lane.h"
#include "tls/tls.h"

/* Least bytes per second of a payload. A client that sends a byte from time to time must not keep memory for ever.
   net/watchdog.py has the same rate. */
#define MIN_BODY_RATE 2

/* Most receives after the lane refuses requests, because a client may send without end. */
#define MAX_REFUSED 256u

void socket_init(struct iou_lane *lane) {
    if (lane->socket.tls)
        lane->socket.owners_fd = tls_swap_fd(lane->socket.tls, lane->socket.fd);
}

void socket_restore(struct iou_lane *lane) {
    if (lane->socket.tls)
        tls_swap_fd(lane->socket.tls, lane->socket.owners_fd);
}

/* ---- bytes that have arrived ------------------------------------------------------------------------------------ */

/* As recv(2) without waiting. Both functions note whether the socket had no more. */
static ssize_t receive_tls(struct iou_lane *lane, char *memory, size_t size) {
    int64_t count;
    int error = 0;
    while ((count = iou_tls_read(lane->socket.tls, memory, size)) == IOU_TLS_WANTS_ROOM && !error)
        error = socket_await_room(lane); /* OpenSSL answers a KeyUpdate (RFC 8446 4.6.3) */
    lane->socket.emptied = count > 0 && tls_is_emptied(lane->socket.tls);
    if (count >= 0)
        return (ssize_t)count;
    errno = error ? error : count == IOU_TLS_WANTS_INPUT ? EAGAIN : (int)-count;
    return -1;
}

static ssize_t receive_plain(struct iou_lane *lane, char *memory, size_t size) {
    ssize_t count = recv(lane->socket.fd, memory, size, MSG_DONTWAIT);
    lane->socket.emptied = count > 0 && (size_t)count < size;
    return count;
}

/* Receive bytes that have arrived. After a call that has emptied the socket, the next one is made when the socket is
   readable. Only a lane that ends receives again at once. */
static ssize_t receive_now(struct iou_lane *lane, char *memory, size_t size) {
    if (lane->socket.emptied && !lane->state.refusing) {
        lane->socket.emptied = false;
        errno = EAGAIN;
        return -1;
    }
    return lane->socket.tls ? receive_tls(lane, memory, size) : receive_plain(lane, memory, size);
}

/* ---- waiting for bytes ------------------------------------------------------------------------------------------ */

/* Whether the lane refuses requests, and has answered all. */
static bool is_over(const struct iou_lane *lane) {
    return lane->state.refusing && lane->state.running == 0;
}

static uint64_t in_ms(int ms) {
    return ms == -1 ? FOR_EVER : now_ns() + (uint64_t)ms * 1000000;
}

/* Wait until the socket is readable or the state of the lane has changed. False: neither happened within `ms`; -1: no
   limit. */
static bool await_input(struct iou_lane *lane, int ms) {
    uint64_t until = in_ms(ms);
    short events = fiber_await(lane->socket.fd, POLLIN, until);
    if (events == POLLIN)
        lane->socket.checked_ns = now_ns(); /* the peer is alive */
    return events || now_ns() < until;
}

void lane_watch(struct iou_lane *lane, bool received) {
    if (lane->state.broken)
        lane_await(lane, FOR_EVER);
    else if (fiber_await(lane->socket.fd, lane->socket.tls && received ? POLLRDHUP : 0, FOR_EVER))
        lane_break(lane, ECONNRESET);
}

/*
 * Receive at least one byte, and at most size. 0: the peer has ended the stream, or the lane ends. -ETIMEDOUT after ms,
 * -EAGAIN if ms is 0, -ECANCELED unless ms is -1, or the socket's -errno.
 */
static ssize_t receive_within(struct iou_lane *lane, char *memory, size_t size, int ms) {
    for (;;) {
        bool over = is_over(lane);
        if (lane->state.leaving || (over && lane->staging.refused++ == MAX_REFUSED))
            return 0;
        /* Requests that had arrived before are answered, too. */
        ssize_t count = receive_now(lane, memory, size);
        if (count >= 0) {
            lane->socket.received += (uint64_t)count;
            return count;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return -errno;
        if (over)
            return 0;
        if (ms == 0)
            return -EAGAIN;
        if (ms != -1 && lane_canceled(lane)) /* the image must be closed: the lane does not wait for a peer */
            return -ECANCELED;
        if (!await_input(lane, ms))
            return -ETIMEDOUT;
    }
}

/* ---- headers and payloads --------------------------------------------------------------------------------------- */

static void compact(struct iou_lane *lane) {
    uint32_t left = staged(&lane->staging);
    memmove(lane->staging.bytes, staged_bytes(&lane->staging), left);
    lane->staging.start = 0;
    lane->staging.end = left;
}

ssize_t socket_stage(struct iou_lane *lane, uint32_t most, int ms) {
    if (lane->staging.start)
        compact(lane);
    ssize_t count = receive_within(lane, lane->staging.bytes + lane->staging.end, most - lane->staging.end, ms);
    if (count > 0)
        lane->staging.end += (uint32_t)count;
    return count;
}

/* Take staged bytes, which were received together with a header. */
static uint64_t take_staged(struct iou_lane *lane, char *memory, uint64_t length) {
    uint64_t count = min_u64(length, staged(&lane->staging));
    if (memory)
        memcpy(memory, staged_bytes(&lane->staging), count);
    lane->staging.start += (uint32_t)count;
    return count;
}

bool socket_is_too_slow(const struct iou_lane *lane, uint64_t since, uint64_t bytes) {
    uint64_t ms = (now_ns() - since) / 1000000;
    return ms > (uint64_t)lane->timeout_ms && bytes * 1000 < ms * MIN_BODY_RATE;
}

uint64_t socket_receive(struct iou_lane *lane, char *memory, uint64_t length, enum socket_patience patience,
                        int *error) {
    uint64_t got = take_staged(lane, memory, length), staged = got;
    *error = 0;
    if (got == length)
        return got;
    uint64_t since = work_wait(IOU_WAIT_PEER);
    while (got < length) {
        /* Discarded bytes go to the staging, which is empty now. */
        char *target = memory ? memory + got : lane->staging.bytes;
        size_t room = memory ? length - got : min_u64(length - got, LANE_STAGING);
        int ms = patience == SOCKET_LONG ? lane->timeout_ms : ms_until(since + LANE_MOMENT_NS);
        ssize_t count = receive_within(lane, target, room, ms);
        if (count > 0)
            got += (size_t)count;
        if (count > 0 && got < length && socket_is_too_slow(lane, since, got - staged))
            count = -ETIMEDOUT;
        if (count <= 0) {
            *error = count == -ETIMEDOUT && patience != SOCKET_LONG ? -EAGAIN : (int)count;
            break;
        }
    }
    work_go_on(IOU_WAIT_PEER, since);
    return got;
}

void socket_put_back(struct iou_lane *lane, const char *memory, size_t size) {
    memcpy(lane->staging.bytes, memory, size);
    lane->staging.start = 0;
    lane->staging.end = (uint32_t)size;
}

static bool gather_staged(struct iou_lane *lane, uint32_t least, uint64_t since, int *error) {
    uint64_t got = 0;
    *error = 0;
    while (staged(&lane->staging) < least) {
        ssize_t count = socket_stage(lane, LANE_STAGING, lane->timeout_ms);
        if (count > 0)
            got += (uint64_t)count;
        if (count > 0 && staged(&lane->staging) < least && socket_is_too_slow(lane, since, got))
            count = -ETIMEDOUT;
        if (count <= 0) {
            *error = (int)count;
            return false;
        }
    }
    return true;
}

bool socket_gather(struct iou_lane *lane, uint32_t least, int *error) {
    uint64_t since = work_wait(IOU_WAIT_PEER);
    bool gathered = gather_staged(lane, least, since, error);
    work_go_on(IOU_WAIT_PEER, since);
    return gathered;
}
