/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The use of a lane's socket by any thread: check it, wake the leader, send. A send waits at most for the lane's
 * timeout without progress of the peer. receive.c has the functions for the leader only.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "lane/lane.h"

/* A thread that waits for the peer to read checks the lane's state at this interval. */
#define SEND_LOOK_MS 100

bool socket_is_gone(const struct iou_lane *lane) {
    struct pollfd polled = {.fd = lane->socket.fd};
    return poll(&polled, 1, 0) > 0;
}

void socket_wake(struct iou_lane *lane) {
    eventfd_write(lane->socket.wake_fd, 1);
}

/* ---- sending ---------------------------------------------------------------------------------------------------- */

static int await_room(struct iou_lane *lane) {
    struct pollfd polled = {.fd = lane->socket.fd, .events = POLLOUT};
    int before = INT32_MAX, unsent = 0, waited = 0;
    while (!lane_canceled(lane)) {
        int count = poll(&polled, 1, SEND_LOOK_MS);
        if (count > 0)
            return 0;
        if (count == -1 && errno != EINTR)
            return errno;
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

/* Move the parts past the bytes that were sent. Returns how many parts are left. */
static unsigned advance(struct iovec **parts, unsigned count, size_t sent) {
    while (count && sent >= (*parts)->iov_len) {
        sent -= (*parts)->iov_len;
        (*parts)->iov_len = 0;
        (*parts)++;
        count--;
    }
    if (count) {
        (*parts)->iov_base = (char *)(*parts)->iov_base + sent;
        (*parts)->iov_len -= sent;
    }
    return count;
}

/* As sendmsg(2) without waiting. */
static ssize_t send_now(struct iou_lane *lane, struct iovec *parts, unsigned count) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    if (!lane->socket.tls)
        return sendmsg(lane->socket.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    int64_t sent = iou_tls_write(lane->socket.tls, parts->iov_base, parts->iov_len, count > 1);
    if (sent >= 0)
        return (ssize_t)sent;
    errno = sent == IOU_TLS_WANTS_ROOM ? EAGAIN : sent == IOU_TLS_WANTS_INPUT ? EPROTO : (int)-sent;
    return -1;
}

void socket_init_turns(struct iou_lane *lane) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lane->socket.send_lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

bool socket_take_turn_until_pause(struct iou_lane *lane) {
    struct timespec deadline;
    uint64_t taken = LANE_PAUSE_BYTES;
    int error = pthread_mutex_trylock(&lane->socket.send_lock);
    while (error && taken >= LANE_PAUSE_BYTES) {
        uint64_t before = lane->socket.sent;
        deadline_in(CLOCK_REALTIME, &deadline, LANE_PAUSE_MS);
        error = pthread_mutex_timedlock(&lane->socket.send_lock, &deadline);
        taken = lane->socket.sent - before;
    }
    return error == 0;
}

void socket_take_turn(struct iou_lane *lane) {
    pthread_mutex_lock(&lane->socket.send_lock);
}

void socket_give_turn(struct iou_lane *lane) {
    pthread_mutex_unlock(&lane->socket.send_lock);
}

/* Whether the peer has taken so little since then that it pauses. */
static bool takes_little(uint64_t since, uint64_t taken) {
    uint64_t ms = (now_ns() - since) / 1000000;
    return ms >= LANE_PAUSE_MS && taken / LANE_PAUSE_BYTES < ms / LANE_PAUSE_MS;
}

/* Wait for room, or until the peer pauses. taken: bytes since then. Returns 0; EAGAIN: it pauses; or an errno. */
static int await_room_until_pause(struct iou_lane *lane, uint64_t since, uint64_t taken) {
    struct pollfd polled = {.fd = lane->socket.fd, .events = POLLOUT};
    if (takes_little(since, taken))
        return EAGAIN;
    uint64_t now = work_wait(IOU_WAIT_PEER);
    int count = poll(&polled, 1, LANE_PAUSE_MS);
    work_go_on(IOU_WAIT_PEER, now);
    return count > 0 || (count == -1 && errno == EINTR) ? 0 : count == 0 ? EAGAIN : errno;
}

/* Send all parts, or until the peer pauses. *all: how many bytes were sent. 0 or an errno. */
static int send_parts(struct iou_lane *lane, struct iovec *parts, unsigned count, bool until_pause, uint64_t *all) {
    uint64_t since = until_pause ? now_ns() : 0;
    int error = 0;
    *all = 0;
    pthread_mutex_lock(&lane->socket.send_lock);
    while (count && !lane->state.broken && !error) {
        ssize_t sent = send_now(lane, parts, count);
        error = sent >= 0 || errno == EINTR ? 0
                : errno != EAGAIN           ? errno
                : until_pause               ? await_room_until_pause(lane, since, *all)
                                            : socket_await_room(lane);
        if (sent >= 0) {
            *all += (uint64_t)sent;
            lane->socket.sent += (uint64_t)sent;
            count = advance(&parts, count, (size_t)sent);
        }
    }
    pthread_mutex_unlock(&lane->socket.send_lock);
    return error == EAGAIN ? 0 : error;
}

int socket_send(struct iou_lane *lane, struct iovec *parts, unsigned count) {
    uint64_t sent;
    return send_parts(lane, parts, count, false, &sent);
}

int socket_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count, uint64_t *sent) {
    return send_parts(lane, parts, count, true, sent);
}
