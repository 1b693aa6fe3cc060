/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The leader's use of a lane's socket: receiving. It waits for the peer at most for the lane's timeout, except for the
 * next request, which may take for ever.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/lane.h"
#include "tls/tls.h"

/* Least bytes per second of a payload. A client that sends a byte from time to time must not keep memory for ever. */
#define MIN_RATE 2

/* The next request of a busy client comes within this time. A wake-up by the owner may take so long to be noticed. */
#define RECEIVE_MOMENT_US (LANE_MOMENT_MS * 1000)

/*
 * The leader polls for the next header for so long before it sleeps, while that mostly succeeds: to sleep and be woken
 * takes longer than a client that waits for each answer needs for its next request. Measured with 16384 extents, mapped
 * one by one, on tmpfs, 7 rounds: 22.8 thousand a second without polling, 23.0 with 20 us, 29.6 with 60 us, at 23, 25
 * and 33 us of processor time each. The leader does not poll for a quiet client.
 */
#define LOOK_NS 60000u

/* Most receives after the lane refuses requests: a client may go on sending for ever. */
#define MAX_REFUSED 256u

/* ---- the socket's own wait -------------------------------------------------------------------------------------- */

/*
 * Make recv(2) wait for a moment: a busy connection then needs one system call for the next bytes, not three. Only
 * after that moment, poll(2) waits for bytes and for the owner of the lane.
 */
int socket_init(struct iou_lane *lane) {
    if (lane->socket.tls) {
        lane->socket.owners_fd = tls_swap_fd(lane->socket.tls, lane->socket.fd);
        return 0;
    }
    struct timeval moment = {.tv_usec = RECEIVE_MOMENT_US};
    int flags = fcntl(lane->socket.fd, F_GETFL);
    /* The flag is last: after a failure the owner's descriptor must still be non-blocking. */
    if (flags == -1 || setsockopt(lane->socket.fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof(moment)) == -1 ||
        fcntl(lane->socket.fd, F_SETFL, flags & ~O_NONBLOCK) == -1)
        return -errno;
    return 0;
}

void socket_restore(struct iou_lane *lane) {
    if (lane->socket.tls) {
        tls_swap_fd(lane->socket.tls, lane->socket.owners_fd);
        return;
    }
    struct timeval for_ever = {0};
    fcntl(lane->socket.fd, F_SETFL, fcntl(lane->socket.fd, F_GETFL) | O_NONBLOCK);
    setsockopt(lane->socket.fd, SOL_SOCKET, SO_RCVTIMEO, &for_ever, sizeof(for_ever));
}

/* ---- bytes that have arrived, or come in a moment --------------------------------------------------------------- */

/* As recv(2) without waiting. */
static ssize_t receive_tls(struct iou_lane *lane, char *memory, size_t size) {
    int64_t count;
    int error = 0;
    while ((count = iou_tls_read(lane->socket.tls, memory, size)) == IOU_TLS_WANTS_ROOM && !error)
        error = socket_await_room(lane); /* OpenSSL answers a KeyUpdate (RFC 8446 4.6.3) */
    if (count >= 0)
        return (ssize_t)count;
    errno = error ? error : count == IOU_TLS_WANTS_INPUT ? EAGAIN : (int)-count;
    return -1;
}

/* Receive bytes that have arrived. */
static ssize_t receive_now(struct iou_lane *lane, char *memory, size_t size) {
    return lane->socket.tls ? receive_tls(lane, memory, size) : recv(lane->socket.fd, memory, size, MSG_DONTWAIT);
}

/* Receive bytes, and wait for them for a moment. */
static ssize_t receive_in_a_moment(struct iou_lane *lane, char *memory, size_t size) {
    struct pollfd polled = {.fd = lane->socket.fd, .events = POLLIN};
    if (!lane->socket.tls)
        return recv(lane->socket.fd, memory, size, 0);
    poll(&polled, 1, RECEIVE_MOMENT_US / 1000);
    return receive_tls(lane, memory, size);
}

/* Poll for bytes for look_ns; -1 with EAGAIN: none have arrived. Other threads may run meanwhile. */
static ssize_t receive_soon(struct iou_lane *lane, char *memory, size_t size) {
    uint64_t began = now_ns();
    ssize_t count;
    while ((count = receive_now(lane, memory, size)) == -1 && errno == EAGAIN &&
           now_ns() - began < lane->staging.look_ns)
        sched_yield();
    return count;
}

/* Receive bytes, wait for them for a moment, and set for how long to poll for the next header. */
static ssize_t receive_once(struct iou_lane *lane, char *memory, size_t size, int flags) {
    if (flags & MSG_DONTWAIT || (flags & MSG_WAITALL && lane->socket.tls))
        return receive_now(lane, memory, size);
    if (flags & MSG_WAITALL)
        return recv(lane->socket.fd, memory, size, flags);
    uint64_t began = now_ns();
    ssize_t count = receive_soon(lane, memory, size);
    if (count != -1 || errno != EAGAIN)
        return count;
    count = receive_in_a_moment(lane, memory, size);
    lane->staging.look_ns = now_ns() - began < LOOK_NS ? LOOK_NS : lane->staging.look_ns / 2;
    return count;
}

/* ---- waiting for bytes ------------------------------------------------------------------------------------------ */

/* Whether the lane refuses requests, and has answered all. */
static bool is_over(const struct iou_lane *lane) {
    return lane->state.refusing && lane->state.running == 0;
}

/* Wait until the socket is readable or the leader is woken. False: neither happened for so many ms; -1: no limit. */
static bool await_input(struct iou_lane *lane, int ms) {
    struct pollfd polled[2] = {{.fd = lane->socket.fd, .events = POLLIN},
                               {.fd = lane->socket.wake_fd, .events = POLLIN}};
    eventfd_t wakeups;
    int count;
    do
        count = poll(polled, 2, ms);
    while (count == -1 && errno == EINTR);
    if (polled[1].revents)
        eventfd_read(lane->socket.wake_fd, &wakeups);
    return count != 0;
}

bool socket_watch(struct iou_lane *lane, bool received) {
    struct pollfd polled[2] = {{.fd = lane->socket.wake_fd, .events = POLLIN},
                               {.fd = lane->socket.fd, .events = lane->socket.tls && received ? POLLRDHUP : 0}};
    eventfd_t wakeups;
    poll(polled, lane->state.broken ? 1 : 2, -1);
    if (polled[0].revents)
        eventfd_read(lane->socket.wake_fd, &wakeups);
    return polled[1].revents && !lane->state.broken;
}

/*
 * Receive at least one byte, and at most size. 0: the peer has ended the stream, or the lane ends. -ETIMEDOUT after ms,
 * -EAGAIN if ms is 0, -ECANCELED unless ms is -1, or the socket's -errno.
 */
static ssize_t receive(struct iou_lane *lane, char *memory, size_t size, int flags, int ms) {
    for (;;) {
        bool over = is_over(lane);
        if (lane->state.leaving || (over && lane->staging.refused++ == MAX_REFUSED))
            return 0;
        /* Requests that had arrived before are answered, too. */
        ssize_t count = receive_once(lane, memory, size, over || ms == 0 ? MSG_DONTWAIT : flags);
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
    uint32_t left = lane->staging.end - lane->staging.start;
    memmove(lane->staging.bytes, lane->staging.bytes + lane->staging.start, left);
    lane->staging.start = 0;
    lane->staging.end = left;
}

ssize_t socket_stage(struct iou_lane *lane, uint32_t most, int ms) {
    if (lane->staging.start)
        compact(lane);
    ssize_t count = receive(lane, lane->staging.bytes + lane->staging.end, most - lane->staging.end, 0, ms);
    if (count > 0)
        lane->staging.end += (uint32_t)count;
    return count;
}

/* Take staged bytes, which were received together with a header. */
static uint64_t take_staged(struct iou_lane *lane, char *memory, uint64_t length) {
    uint64_t count = min_u64(length, lane->staging.end - lane->staging.start);
    if (memory)
        memcpy(memory, lane->staging.bytes + lane->staging.start, count);
    lane->staging.start += (uint32_t)count;
    return count;
}

bool socket_is_too_slow(const struct iou_lane *lane, uint64_t since, uint64_t bytes) {
    uint64_t ms = (now_ns() - since) / 1000000;
    return ms > (uint64_t)lane->timeout_ms && bytes * 1000 < ms * MIN_RATE;
}

/* Return for how many ms more to wait for bytes, after a wait since then. */
static int ms_left(const struct iou_lane *lane, enum socket_patience patience, uint64_t since) {
    uint64_t moment = LANE_MOMENT_MS * UINT64_C(1000000), waited = now_ns() - since;
    if (patience == SOCKET_LONG)
        return lane->timeout_ms;
    return patience == SOCKET_NOW || waited >= moment ? 0 : (int)((moment - waited) / 1000000) + 1;
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
        ssize_t count = receive(lane, target, room, MSG_WAITALL, ms_left(lane, patience, since));
        if (count > 0)
            got += (size_t)count;
        if (count > 0 && got < length && socket_is_too_slow(lane, since, got - staged))
            count = -ETIMEDOUT;
        if (count <= 0)
            *error = count == -ETIMEDOUT && patience != SOCKET_LONG ? -EAGAIN : (int)count;
        if (count <= 0 || patience == SOCKET_NOW)
            break;
    }
    work_go_on(IOU_WAIT_PEER, since);
    return got;
}

void socket_put_back(struct iou_lane *lane, const char *memory, size_t size) {
    memcpy(lane->staging.bytes, memory, size);
    lane->staging.start = 0;
    lane->staging.end = (uint32_t)size;
}

static bool gather(struct iou_lane *lane, uint32_t least, uint64_t since, int *error) {
    uint64_t got = 0;
    *error = 0;
    while (lane->staging.end - lane->staging.start < least) {
        ssize_t count = socket_stage(lane, LANE_STAGING, lane->timeout_ms);
        if (count > 0)
            got += (uint64_t)count;
        if (count > 0 && lane->staging.end - lane->staging.start < least && socket_is_too_slow(lane, since, got))
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
    bool gathered = gather(lane, least, since, error);
    work_go_on(IOU_WAIT_PEER, since);
    return gathered;
}
