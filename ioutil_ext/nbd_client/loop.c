/* SPDX-License-Identifier: Apache-2.0 */

/* The thread of a client: it receives, and sends the bytes for which sockets had no room. */

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "nbd_client/client.h"

/* Calls that receive from one connection, before another one has its turn. */
#define MOST_CALLS 16

/* Receive the bytes that have arrived. *more: there may be more. Returns as recvmsg(2), or -errno. */
static int64_t receive_ready(struct connection *connection, bool *more) {
    struct iovec parts[2];
    unsigned count = replies_space(&connection->replies, parts);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    size_t space = parts[0].iov_len + (count > 1 ? parts[1].iov_len : 0);
    if (!connection->tls) {
        ssize_t got = recvmsg(connection->fd, &message, MSG_DONTWAIT);
        *more = got == (ssize_t)space;
        return got >= 0 ? got : -errno;
    }
    int64_t got = iou_tls_read(connection->tls, parts[0].iov_base, parts[0].iov_len);
    *more = got > 0;
    return got == IOU_TLS_WANTS_INPUT || got == IOU_TLS_WANTS_ROOM ? -EAGAIN : got;
}

/* Receive from a connection. NULL, or why it has ended. */
static const char *receive_from(struct connection *connection) {
    const char *why = NULL;
    bool more = true;
    for (int calls = 0; more && !why && calls < MOST_CALLS; calls++) {
        int64_t got = receive_ready(connection, &more);
        if (got > 0)
            why = replies_received(&connection->replies, (size_t)got);
        else if (got == 0)
            why = "the server closed the connection";
        else if (got != -EAGAIN && got != -EINTR)
            why = strerror((int)-got);
        if (got == -EAGAIN)
            more = false;
    }
    return why;
}

/* Serve a connection that is ready. The lock is held. */
static void serve_connection(struct connection *connection, short events) {
    struct client *client = connection->client;
    if (client->session.broken)
        return;
    if (events & (POLLIN | POLLHUP | POLLERR)) {
        pthread_mutex_unlock(&client->lock);
        const char *why = receive_from(connection);
        pthread_mutex_lock(&client->lock);
        if (why)
            session_break(client, failure_gone(client, why));
    }
    if (events & POLLOUT)
        connection->blocked = false;
    connection_send(connection, &client->served);
}

/* Prepare to wait for all connections. Returns how many there are. The lock is held. */
static nfds_t prepare_poll(struct client *client, struct pollfd *polled, int *timeout) {
    const struct session *session = &client->session;
    nfds_t count = 0;
    polled[count++] = (struct pollfd){.fd = client->wake_fd, .events = POLLIN};
    *timeout = -1;
    if (session->life == IOU_NBD_NONE || session->broken)
        return count;
    if (session->life == IOU_NBD_ENDING)
        *timeout = ms_until(session->deadline);
    for (uint32_t i = 0; i < session->count; i++) {
        const struct connection *connection = &session->connections[i];
        short events = (short)(POLLIN | (connection->blocked ? POLLOUT : 0));
        polled[count++] = (struct pollfd){.fd = connection->fd, .events = events};
        if (connection->tls && iou_tls_pending(connection->tls))
            *timeout = 0;
    }
    return count;
}

/* Wake those whose requests have ended. The lock is held, and released meanwhile. */
static void wake_ended(struct client *client) {
    pthread_mutex_unlock(&client->lock);
    waiters_wake(&client->served);
    pthread_mutex_lock(&client->lock);
}

/* Wait, and serve the connections that are ready. The lock is held, and released meanwhile. */
static void turn(struct client *client) {
    struct pollfd polled[1 + IOU_NBD_CONNECTIONS];
    eventfd_t events;
    int timeout;
    nfds_t count = prepare_poll(client, polled, &timeout);
    pthread_mutex_unlock(&client->lock);
    int ready = poll(polled, count, timeout);
    if (ready > 0 && polled[0].revents)
        eventfd_read(client->wake_fd, &events);
    pthread_mutex_lock(&client->lock);
    for (nfds_t i = 1; ready >= 0 && i < count; i++) {
        struct connection *connection = &client->session.connections[i - 1];
        bool pending = connection->tls && iou_tls_pending(connection->tls);
        if (polled[i].revents || pending)
            serve_connection(connection, (short)(polled[i].revents | (pending ? POLLIN : 0)));
        if (!link_empty(&client->served))
            wake_ended(client);
    }
}

void *loop_main(void *argument) {
    struct client *client = argument;
    pthread_setname_np(pthread_self(), "nbd-client");
    pthread_mutex_lock(&client->lock);
    while (!client->stopping || client->session.life != IOU_NBD_NONE) {
        turn(client);
        session_end(client);
        wake_ended(client);
    }
    pthread_mutex_unlock(&client->lock);
    return NULL;
}
