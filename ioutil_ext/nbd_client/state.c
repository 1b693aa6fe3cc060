/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The state of a client: its session begins to end, requests end, others are told. The end of one connection ends all
 * of them: they share one state, and what is lost with one is not known.
 */

#define _GNU_SOURCE
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "nbd_client/client.h"

void client_notify(struct client *client) {
    eventfd_write(client->event_fd, 1);
}

void client_wake(struct client *client) {
    eventfd_write(client->wake_fd, 1);
}

void request_ended(struct nbd_request *request, struct link *served) {
    struct calls *calls = request->calls;
    if (--calls->left == 0)
        waiter_serve(&calls->waiter, served);
}

void connection_forget(struct connection *connection, struct nbd_request *request) {
    unsigned place = (unsigned)(request->cookie % MOST_FLYING);
    connection->flying[place] = NULL;
    connection->free |= UINT64_C(1) << place;
    ranges_free(&request->others);
}

void session_break(struct client *client, uint64_t failure) {
    struct session *session = &client->session;
    if (session->life == IOU_NBD_NONE || session->broken)
        return;
    session->broken = true;
    session->life = IOU_NBD_ENDING;
    session->ending = session->ending ? session->ending : failure;
    for (uint32_t i = 0; i < session->count; i++)
        shutdown(session->connections[i].fd, SHUT_RDWR);
    client_wake(client);
}

void session_leave(struct client *client, uint64_t failure, uint64_t wait_ms) {
    struct session *session = &client->session;
    uint64_t deadline = now_ns() + wait_ms * 1000000;
    if (session->life == IOU_NBD_NONE)
        return;
    session->life = IOU_NBD_ENDING;
    session->ending = session->ending ? session->ending : failure;
    if (!session->deadline || deadline < session->deadline)
        session->deadline = deadline;
    client_wake(client);
}
