/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The connections of a session: what its replies mean for requests, and its end. Only the client's thread ends requests
 * whose reply is not complete, because it may be receiving into their memory.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "nbd_client/client.h"

/* ---- requests of a connection ----------------------------------------------------------------------------------- */

static struct connection *connection_of(struct requests *requests) {
    return container_of(requests, struct connection, requests);
}

static struct nbd_request *find_request(struct requests *requests, uint64_t cookie) {
    struct connection *connection = connection_of(requests);
    pthread_mutex_lock(&connection->client->lock);
    struct nbd_request *request = connection->flying[cookie % MOST_FLYING];
    bool found = request && request->cookie == cookie && !request->answered;
    pthread_mutex_unlock(&connection->client->lock);
    return found ? request : NULL;
}

static void refused(struct requests *requests, struct nbd_request *request, const char *text, size_t length) {
    struct client *client = connection_of(requests)->client;
    pthread_mutex_lock(&client->lock);
    request->told = failure_add(client, IOU_NBD_REFUSED, request, (int)request->error, text, length);
    if (!client->flush_failure.number && request_fails_flushes(request, client->session.agreed.most))
        client->flush_failure = *failure_find(client, request->told);
    pthread_mutex_unlock(&client->lock);
}

static const char *ended(struct requests *requests, struct nbd_request *request) {
    struct connection *connection = connection_of(requests);
    const char *why = NULL;
    pthread_mutex_lock(&connection->client->lock);
    if (!request->unsent) {
        request_answered(connection, request, &connection->client->served);
    } else if (connection->sending) {
        request->answered = true; /* the sending thread knows whether it was sent */
    } else {
        why = "a reply to a request that was not sent yet";
    }
    pthread_mutex_unlock(&connection->client->lock);
    return why;
}

int connection_init(struct connection *connection, struct client *client, const iou_nbd_connection *told) {
    *connection = (struct connection){
        .requests = {find_request, refused, ended},
        .client = client,
        .fd = told->socket,
        .tls = told->tls,
        .contexts = {.count = told->contexts_count},
        .free = UINT64_MAX,
    };
    for (uint32_t i = 0; i < told->contexts_count; i++)
        connection->contexts.list[i] = told->contexts[i];
    link_init(&connection->queue);
    return replies_init(&connection->replies, &connection->requests, &client->session.agreed);
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static void give_up(struct client *client, struct nbd_request *request) {
    request->failure = -ENOTCONN;
    request->told = client->session.ending;
    request_ended(request, &client->served);
}

static void give_up_requests(struct connection *connection) {
    struct client *client = connection->client;
    for (unsigned i = 0; i < MOST_FLYING; i++) {
        struct nbd_request *request = connection->flying[i];
        if (!request)
            continue;
        client->session.gave_up_changes |= request_is_change(request) && !request->answered;
        connection_forget(connection, request);
        give_up(client, request);
    }
    while (!link_empty(&connection->queue)) {
        struct nbd_request *request = container_of(link_take(&connection->queue), struct nbd_request, link);
        give_up(client, request);
    }
}

/* Send NBD_CMD_DISC, without waiting: nothing else is being sent, so the socket has room. */
static void say_goodbye(struct connection *connection) {
    const struct nbd_request request = {.command = CMD_DISC};
    char header[NBD_MAX_HEADER];
    size_t size = request_header(&request, connection->client->session.agreed.extended, header);
    if (connection->tls) {
        iou_tls_write(connection->tls, header, size, false);
        iou_tls_end(connection->tls);
    } else {
        send(connection->fd, header, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

static bool is_connection_idle(const struct connection *connection) {
    return connection->free == UINT64_MAX && link_empty(&connection->queue) && !connection->sending;
}

static bool any_sends(const struct session *session) {
    for (uint32_t i = 0; i < session->count; i++)
        if (session->connections[i].sending)
            return true;
    return false;
}

static bool all_idle(const struct session *session) {
    for (uint32_t i = 0; i < session->count; i++)
        if (!is_connection_idle(&session->connections[i]))
            return false;
    return true;
}

void session_end(struct client *client) {
    struct session *session = &client->session;
    if (session->life != IOU_NBD_ENDING)
        return;
    if (!session->broken && session->deadline <= now_ns() && !all_idle(session))
        session_break(client, 0);
    if (session->broken ? any_sends(session) : !all_idle(session))
        return;
    for (uint32_t i = 0; i < session->count; i++) {
        struct connection *connection = &session->connections[i];
        if (session->broken)
            give_up_requests(connection);
        else
            say_goodbye(connection);
        close(connection->fd);
        connection->fd = -1;
        replies_free(&connection->replies);
    }
    session->life = IOU_NBD_NONE;
    client_notify(client);
}

void session_free(struct client *client) {
    free(client->session.connections);
    client->session.connections = NULL;
    client->session.count = 0;
}
