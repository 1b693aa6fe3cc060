/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What any thread may do with a lane's socket: end the connection, wake the leader, send. No reader is waited for
 * longer than the timeout without progress. What only the leader may do is in lane_receive.c.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "lane.h"

/*
 * For so long a peer counts as alive that was. Looking before each change took 13 % more processor time for random
 * writes of 4 KiB over NBD to tmpfs (1.07 to 1.20, 7 pairs of rounds); what is read late was sent 20 ms ago.
 */
#define CHECK_NS 250000u

/* How often a thread that waits for the peer to read looks at its lane. */
#define SEND_LOOK_MS 100

void socket_break(struct iou_lane *lane, int error) {
    int none = 0;
    atomic_compare_exchange_strong(&lane->error, &none, error);
    lane->broken = true;
    __atomic_store_n(&lane->control->canceled, 1, __ATOMIC_SEQ_CST); /* nobody can see an answer any more */
    lane->leaving = true;
    shutdown(lane->fd, SHUT_RDWR);
    lane_wake(lane);
}

void socket_check(struct iou_lane *lane) {
    struct pollfd polled = {.fd = lane->fd};
    uint64_t now = now_ns();
    if (lane->broken || now - lane->checked_ns < CHECK_NS)
        return;
    lane->checked_ns = now;
    if (poll(&polled, 1, 0) > 0)
        socket_break(lane, ECONNRESET);
}

void socket_wake(struct iou_lane *lane) {
    eventfd_write(lane->wake_fd, 1);
}

/* ---- sending ---------------------------------------------------------------------------------------------------- */

int socket_await_room(struct iou_lane *lane) {
    struct pollfd polled = {.fd = lane->fd, .events = POLLOUT};
    int before = INT32_MAX, unsent = 0, waited = 0;
    while (!lane_canceled(lane)) {
        int count = poll(&polled, 1, SEND_LOOK_MS);
        if (count > 0)
            return 0;
        if (count == -1 && errno != EINTR)
            return errno;
        if (ioctl(lane->fd, SIOCOUTQ, &unsent) == -1)
            return errno;
        waited = unsent < before ? 0 : waited + SEND_LOOK_MS;
        before = unsent;
        if (waited >= lane->timeout_ms)
            return ETIMEDOUT;
    }
    return ECANCELED;
}

/* Move over what was sent; returns how many parts are left. */
static unsigned advance(struct iovec **parts, unsigned count, size_t sent) {
    while (count && sent >= (*parts)->iov_len) {
        sent -= (*parts)->iov_len;
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
    if (!lane->tls)
        return sendmsg(lane->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    int64_t sent = iou_tls_write(lane->tls, parts->iov_base, parts->iov_len, count > 1);
    if (sent >= 0)
        return (ssize_t)sent;
    errno = sent == IOU_TLS_WANTS_ROOM ? EAGAIN : sent == IOU_TLS_WANTS_INPUT ? EPROTO : (int)-sent;
    return -1;
}

void socket_init_turns(struct iou_lane *lane) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lane->send_lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

bool socket_take_turn_until_pause(struct iou_lane *lane) {
    struct timespec deadline;
    uint64_t before = UINT64_MAX;
    int error = pthread_mutex_trylock(&lane->send_lock);
    while (error && before != lane->sent) {
        before = lane->sent;
        deadline_in(CLOCK_REALTIME, &deadline, LANE_PAUSE_MS);
        error = pthread_mutex_timedlock(&lane->send_lock, &deadline);
    }
    return error == 0;
}

void socket_take_turn(struct iou_lane *lane) {
    pthread_mutex_lock(&lane->send_lock);
}

void socket_give_turn(struct iou_lane *lane) {
    pthread_mutex_unlock(&lane->send_lock);
}

/* Wait for room, or until the peer pauses. Returns 0, EAGAIN: it does, or another errno. */
static int await_room_until_pause(struct iou_lane *lane) {
    struct pollfd polled = {.fd = lane->fd, .events = POLLOUT};
    int count = poll(&polled, 1, LANE_PAUSE_MS);
    return count > 0 || (count == -1 && errno == EINTR) ? 0 : count == 0 ? EAGAIN : errno;
}

/* Send until await gives an error; EAGAIN is none of the connection. */
static uint64_t send_parts(struct iou_lane *lane, struct iovec *parts, unsigned count,
                           int (*await)(struct iou_lane *lane)) {
    uint64_t all = 0;
    int error = 0;
    pthread_mutex_lock(&lane->send_lock);
    while (count && !lane->broken && !error) {
        ssize_t sent = send_now(lane, parts, count);
        error = sent >= 0 || errno == EINTR ? 0 : errno == EAGAIN ? await(lane) : errno;
        if (sent >= 0) {
            all += (uint64_t)sent;
            lane->sent += (uint64_t)sent;
            count = advance(&parts, count, (size_t)sent);
        }
    }
    pthread_mutex_unlock(&lane->send_lock);
    if (error && error != EAGAIN)
        socket_break(lane, error);
    return all;
}

void socket_send(struct iou_lane *lane, struct iovec *parts, unsigned count) {
    send_parts(lane, parts, count, socket_await_room);
}

uint64_t socket_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count) {
    return send_parts(lane, parts, count, await_room_until_pause);
}

void socket_await_reader(struct iou_lane *lane) {
    int error = lane->broken ? 0 : socket_await_room(lane);
    if (error)
        socket_break(lane, error);
}
