/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sending requests. The thread that has a request sends it, if the socket has room, so most requests need no other
 * thread. One thread at a time sends on a connection, and also sends the requests that others have queued meanwhile.
 * The lock is released during the system call. So the reply may arrive before the request is marked as sent.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "base/numbers.h"
#include "nbd_client/client.h"
#include "tls/tls.h"

static bool is_request_canceled(const struct nbd_request *request) {
    return control_is_canceled(request->calls->control);
}

static void cancel_request(struct nbd_request *request, struct link *served) {
    link_remove(&request->link);
    request->failure = -ECANCELED;
    request_ended(request, served);
}

void connection_drop_canceled(struct connection *connection, struct link *served) {
    for (struct link *node = connection->queue.next, *next; node != &connection->queue; node = next) {
        struct nbd_request *request = container_of(node, struct nbd_request, link);
        next = node->next;
        if (is_request_canceled(request))
            cancel_request(request, served);
    }
}

/* ---- requests that are being sent ------------------------------------------------------------------------------- */

/* Give a request a cookie, and add its bytes to those that are being sent. */
static void begin_sending(struct connection *connection, struct nbd_request *request) {
    unsigned place = (unsigned)__builtin_ctzll(connection->free), number = connection->count++;
    char *header = connection->headers[number];
    request->cookie = ++connection->cookies * MOST_FLYING + place;
    connection->free &= ~(UINT64_C(1) << place);
    connection->flying[place] = request;
    connection->sent[number] = request;
    size_t size = request_header(request, connection->client->session.agreed.extended, header);
    connection->parts[connection->parts_left++] = (struct iovec){header, size};
    request->unsent = size;
    if (request->command == CMD_WRITE) {
        connection->parts[connection->parts_left++] = (struct iovec){request->memory, request->length};
        request->unsent += request->length;
    }
}

/* Begin with requests of the queue. False: none can be begun. */
static bool begin_next(struct connection *connection, struct link *served) {
    connection->first = connection->count = connection->parts_left = 0;
    connection->part = connection->parts;
    while (connection->count < MOST_SENT && connection->free && !link_empty(&connection->queue)) {
        struct nbd_request *request = container_of(connection->queue.next, struct nbd_request, link);
        if (is_request_canceled(request)) {
            cancel_request(request, served);
            continue;
        }
        link_remove(&request->link);
        begin_sending(connection, request);
    }
    return connection->count > 0;
}

/* Note that bytes were sent. False: a request was answered before it was sent as a whole. */
static bool note_sent(struct connection *connection, uint64_t sent, struct link *served) {
    connection->parts_left = tls_skip_parts(&connection->part, connection->parts_left, sent);
    while (connection->first < connection->count) {
        struct nbd_request *request = connection->sent[connection->first];
        uint64_t part = min_u64(sent, request->unsent);
        request->unsent -= part;
        sent -= part;
        if (request->unsent)
            return !request->answered;
        connection->first++;
        if (request->answered)
            request_answered(connection, request, served);
    }
    return true;
}

/* ---- sending ---------------------------------------------------------------------------------------------------- */

static void note_failure(struct connection *connection, int error) {
    struct client *client = connection->client;
    if (error == -EAGAIN)
        connection->blocked = true;
    else if (error != -EINTR)
        session_break(client, failure_gone(client, strerror(-error)));
    client_wake(client);
}

void connection_send(struct connection *connection, struct link *served) {
    struct client *client = connection->client;
    struct session *session = &client->session;
    if (connection->sending)
        return; /* that thread also sends the queue */
    connection->sending = true;
    while (!connection->blocked && !session->broken &&
           (connection->first < connection->count || begin_next(connection, served))) {
        pthread_mutex_unlock(&client->lock);
        int64_t sent = tls_send_parts(connection->tls, connection->fd, connection->part, connection->parts_left);
        pthread_mutex_lock(&client->lock);
        if (sent < 0)
            note_failure(connection, (int)sent);
        else if (!note_sent(connection, (uint64_t)sent, served))
            session_break(client, failure_gone(client, "a reply to a request that was not sent yet"));
    }
    connection->sending = false;
    if (session->life == IOU_NBD_ENDING)
        client_wake(client); /* it waits for this */
}
