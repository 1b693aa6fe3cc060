/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The state of a client: the end of its session, the ends of requests, notifications. The end of one connection ends
 * all of them: they share one state, and the changes that were lost with one are not known.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/numbers.h"
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

/* Counted here, not by the waiting thread: a session may end, and the next one begin, before that thread runs again. */
void request_answered(struct connection *connection, struct nbd_request *request, struct link *served) {
    bool changed = !request->error && request_is_change(request) && !(request->flags & FLAG_FUA);
    connection->client->session.changed += changed;
    connection_forget(connection, request);
    request_ended(request, served);
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

/* ---- why operations have failed --------------------------------------------------------------------------------- */

/* Completions have the numbers of failures, by which Python gets the texts. */

uint64_t failure_add(struct client *client, uint32_t kind, const struct nbd_request *request, int error,
                     const char *text, size_t length) {
    uint64_t number = ++client->failures_count;
    iou_nbd_failure *failure = &client->failures[number % MOST_FAILURES];
    *failure = (iou_nbd_failure){.number = number, .kind = kind, .error = error};
    if (request) {
        failure->command = request->command;
        failure->offset = request->offset;
        failure->length = request->length;
    }
    memcpy(failure->text, text, min_u64(length, IOU_NBD_TEXT - 1)); /* zeros follow */
    return number;
}

uint64_t failure_gone(struct client *client, const char *text) {
    return failure_add(client, IOU_NBD_GONE, NULL, ENOTCONN, text, strlen(text));
}

const iou_nbd_failure *failure_find(const struct client *client, uint64_t number) {
    const iou_nbd_failure *kept[] = {&client->flush_failure, &client->unusable,
                                     &client->failures[number % MOST_FAILURES]};
    for (size_t i = 0; number && i < LENGTH(kept); i++)
        if (kept[i]->number == number)
            return kept[i];
    return NULL;
}

int iou_nbd_client_failure(iou_handle *handle, uint64_t number, iou_nbd_failure *failure) {
    struct client *client = client_of(handle);
    if (handle_is_foreign(handle))
        return -ECHILD;
    pthread_mutex_lock(&client->lock);
    const iou_nbd_failure *found = failure_find(client, number);
    if (found)
        *failure = *found;
    pthread_mutex_unlock(&client->lock);
    return found ? 0 : -ENOENT;
}
