/* SPDX-License-Identifier: Apache-2.0 */

/* The client as Python sees it: its beginning and end, sessions, and refusals. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/numbers.h"
#include "base/thread.h"
#include "nbd_client/client.h"

#define MAX_NAME 255u
#define MIN_PIECE (64 * KIB)
#define MAX_AHEAD 16u
#define MAX_BLOCK (64 * KIB)

/* ---- beginning -------------------------------------------------------------------------------------------------- */

static bool is_power_of_two(uint64_t number) {
    return number && is_aligned(number, number);
}

static bool are_client_options_valid(const iou_nbd_client_options *options) {
    bool piece = is_power_of_two(options->piece) && options->piece >= MIN_PIECE && options->piece <= IOU_NBD_PIECE;
    bool block = is_power_of_two(options->block_size) && options->block_size <= MAX_BLOCK;
    bool zero = !options->zero_unit || is_power_of_two(options->zero_unit);
    return options->name && options->size <= INT64_MAX && piece && block && zero && options->ahead &&
           options->ahead <= MAX_AHEAD;
}

static void init(struct client *client, const iou_nbd_client_options *options) {
    image_init(&client->image, IOU_REMOTE, options->device, 0);
    client->image.size = options->size;
    client->image.pieces = (struct pieces){options->piece, options->ahead};
    client->zero_unit = options->zero_unit;
    client->allocation = options->allocation;
    client->close_ms = options->close_ms;
    pthread_mutex_init(&client->lock, NULL);
    client->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    client->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    link_init(&client->entering);
    link_init(&client->waiting);
    link_init(&client->served);
}

int iou_nbd_client_new(const iou_nbd_client_options *options, iou_handle **result) {
    fork_watch();
    if (!are_client_options_valid(options))
        return -EINVAL;
    iou_handle *handle = calloc(1, sizeof(*handle));
    struct client *client = calloc(1, sizeof(*client));
    char *name = strndup(options->name, MAX_NAME);
    if (!handle || !client || !name) {
        free(handle);
        free(client);
        free(name);
        return -ENOMEM;
    }
    init(client, options);
    *handle = (iou_handle){
        .ops = &NBD_IMAGE,
        .image = &client->image,
        .refs = 1,
        .born = fork_generation(),
        .fd = -1,
        .tail_fd = -1,
        .writable = true, /* the server refuses writes that it cannot do */
        .unit = options->block_size,
        .block_size = options->block_size,
        .mem_align = 1,
        .lock_unit = options->block_size,
        .path = name,
    };
    if (client->event_fd == -1 || client->wake_fd == -1) {
        handle_put(handle);
        return -EMFILE;
    }
    *result = handle;
    return 0;
}

int iou_nbd_client_fd(iou_handle *handle) {
    return client_of(handle)->event_fd;
}

/* Whether it has, or had at its end, changes that no flush has covered. The lock is held. */
static bool has_unflushed(const struct session *session) {
    return session->changed > session->flushed || session->gave_up_changes;
}

int iou_nbd_client_look(iou_handle *handle, iou_nbd_client_state *state, uint32_t clear) {
    struct client *client = client_of(handle);
    const struct session *session = &client->session;
    eventfd_t events;
    if (handle_is_foreign(handle))
        return -ECHILD;
    pthread_mutex_lock(&client->lock);
    if (clear)
        eventfd_read(client->event_fd, &events);
    *state = (iou_nbd_client_state){
        .life = session->life,
        .wanted = client->wanted,
        .unflushed = has_unflushed(session) || client->flush_failure.number,
        .written = client->written,
    };
    pthread_mutex_unlock(&client->lock);
    return 0;
}

/* ---- sessions --------------------------------------------------------------------------------------------------- */

/* Wake all operations that wait for a session. failure: its number, or 0 if there is a session now. The lock is
   held. */
static void let_enter(struct client *client, uint64_t failure, struct link *served) {
    client->wanted = false;
    while (!link_empty(&client->entering)) {
        struct entering *entering = container_of(client->entering.next, struct entering, waiter.link);
        entering->refused = failure;
        waiter_serve(&entering->waiter, served);
    }
}

/* Let each flush fail if the previous session has lost changes. True: it has. The lock is held. */
static bool note_lost(struct client *client) {
    const struct session *session = &client->session;
    bool lost = has_unflushed(session);
    if (lost && !client->flush_failure.number) {
        uint64_t failure = failure_gone(client, "it left before all changes were flushed");
        client->flush_failure = *failure_find(client, failure);
    }
    return lost;
}

static int connect_all(struct client *client, const iou_nbd_session *told) {
    struct session *session = &client->session;
    int error = 0;
    session->connections = calloc(told->count, sizeof(*session->connections));
    if (!session->connections)
        return -ENOMEM;
    for (uint32_t i = 0; !error && i < told->count; i++, session->count++)
        error = connection_init(&session->connections[i], client, &told->connections[i]);
    for (uint32_t i = 0; error && i < session->count; i++)
        replies_free(&session->connections[i].replies);
    return error;
}

/* Replace the session, which has ended. The lock is held. */
static int replace(struct client *client, const iou_nbd_session *told, bool *lost) {
    struct session *session = &client->session;
    if (session->life != IOU_NBD_NONE || client->leaving)
        return -EBUSY;
    if (!client->started && thread_start(&client->thread, loop_main, client))
        return -EAGAIN;
    client->started = true;
    *lost = note_lost(client);
    session_free(client);
    *session = (struct session){.number = session->number + 1, .ending_before = session->ending};
    session->agreed = (struct agreed){
        .flags = told->flags,
        .structured = told->structured,
        .extended = told->extended,
        .most = told->most,
    };
    int error = connect_all(client, told);
    if (error)
        session_free(client);
    else
        session->life = IOU_NBD_ALIVE;
    client_wake(client);
    return error;
}

static bool is_session(const iou_nbd_session *told) {
    bool fits = told->count && told->count <= IOU_NBD_CONNECTIONS && told->most && told->most <= MAX_PAYLOAD;
    for (uint32_t i = 0; fits && i < told->count; i++)
        fits = told->connections[i].contexts_count <= IOU_NBD_CONTEXTS;
    return fits;
}

int iou_nbd_client_begin(iou_handle *handle, const iou_nbd_session *told) {
    struct client *client = client_of(handle);
    struct link served = LINK_EMPTY(served);
    bool lost = false;
    if (handle_is_foreign(handle))
        return -ECHILD;
    if (!is_session(told) || told->most % handle->unit)
        return -EINVAL;
    pthread_mutex_lock(&client->lock);
    int error = replace(client, told, &lost);
    if (!error)
        let_enter(client, 0, &served);
    pthread_mutex_unlock(&client->lock);
    waiters_wake(&served);
    if (lost)
        iou_durable_flushed(handle->durable, NULL, EIO); /* nothing is known to be durable from now on */
    return error;
}

uint64_t iou_nbd_client_refuse(iou_handle *handle, const char *text, uint32_t forever) {
    struct client *client = client_of(handle);
    struct link served = LINK_EMPTY(served);
    if (handle_is_foreign(handle))
        return 0;
    pthread_mutex_lock(&client->lock);
    uint64_t failure =
        failure_add(client, forever ? IOU_NBD_UNUSABLE : IOU_NBD_GONE, NULL, ENOTCONN, text, strlen(text));
    if (forever)
        client->unusable = *failure_find(client, failure);
    let_enter(client, failure, &served);
    pthread_mutex_unlock(&client->lock);
    waiters_wake(&served);
    return failure;
}

int iou_nbd_client_leave(iou_handle *handle, uint32_t wait_ms) {
    struct client *client = client_of(handle);
    struct link served = LINK_EMPTY(served);
    if (handle_is_foreign(handle))
        return -ECHILD;
    pthread_mutex_lock(&client->lock);
    client->leaving = true;
    uint64_t failure = failure_gone(client, "it leaves requests unanswered");
    session_leave(client, failure, wait_ms);
    let_enter(client, failure, &served);
    client_notify(client);
    pthread_mutex_unlock(&client->lock);
    waiters_wake(&served);
    return 0;
}

int iou_nbd_client_interrupt(iou_handle *handle) {
    struct client *client = client_of(handle);
    struct link served = LINK_EMPTY(served);
    if (handle_is_foreign(handle))
        return -ECHILD;
    pthread_mutex_lock(&client->lock);
    for (struct link *node = client->entering.next, *next; node != &client->entering; node = next) {
        struct entering *entering = container_of(node, struct entering, waiter.link);
        next = node->next;
        if (control_is_canceled(entering->control))
            waiter_serve(&entering->waiter, &served);
    }
    for (uint32_t i = 0; client->session.life != IOU_NBD_NONE && i < client->session.count; i++)
        connection_drop_canceled(&client->session.connections[i], &served);
    client_wake(client); /* the session may end now */
    pthread_mutex_unlock(&client->lock);
    waiters_wake(&served);
    claims_cancel(&client->image.claims);
    return 0;
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

int iou_nbd_client_free(iou_handle *handle) {
    struct client *client = client_of(handle);
    if (handle_is_foreign(handle))
        return -ECHILD;
    pthread_mutex_lock(&client->lock);
    bool busy = client->session.life != IOU_NBD_NONE;
    client->leaving = true;
    pthread_mutex_unlock(&client->lock);
    if (busy)
        return -EBUSY;
    handle->closing = true;
    handle_put(handle);
    return 0;
}

void client_free(iou_handle *handle) {
    struct client *client = client_of(handle);
    pthread_mutex_lock(&client->lock);
    client->stopping = true;
    client_wake(client);
    pthread_mutex_unlock(&client->lock);
    if (client->started)
        pthread_join(client->thread, NULL);
    session_free(client);
    if (client->event_fd != -1)
        close(client->event_fd);
    if (client->wake_fd != -1)
        close(client->wake_fd);
    pthread_mutex_destroy(&client->lock);
    image_destroy(&client->image);
    iou_durable_release(handle->durable);
    free(client);
}
