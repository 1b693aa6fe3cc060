/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The client of an image: a session of connections to its server. Its thread receives, and sends the bytes that the
 * socket did not take at once (loop.c). The lock of the client is held neither during a wait nor during a system call
 * that moves bytes on a socket. While it is held, no other lock is taken, except that of TLS.
 */

#ifndef IOUTIL_NBD_CLIENT_CLIENT_H
#define IOUTIL_NBD_CLIENT_CLIENT_H

#include <pthread.h>

#include "base/waiter.h"
#include "image/handle.h"
#include "nbd_client/replies.h"

/* Most requests of a connection whose replies are not complete. Others wait in its queue. */
#define MOST_FLYING 64u
/* Most requests that one call sends. */
#define MOST_SENT 16u
/* The number of failures that are kept. */
#define MOST_FAILURES 64u

/* Requests of one operation that are under way together, with the waiter that is woken when all have ended. */
struct calls {
    struct waiter waiter;
    uint32_t left;
    iou_control *control; /* NULL if they cannot be canceled */
};

/* An operation that waits for a session. */
struct entering {
    struct waiter waiter;
    iou_control *control;
    uint64_t refused; /* the number of a failure, or 0 if there is a session */
};

struct connection {
    struct requests requests; /* for its parser */
    struct client *client;
    int fd; /* -1 when it is closed */
    iou_tls *tls;
    struct contexts contexts;                /* the contexts that were selected on it */
    struct link queue;                       /* requests that were not begun */
    struct nbd_request *flying[MOST_FLYING]; /* by the lowest bits of their cookies */
    uint64_t free;                           /* the free places of `flying`, a bit for each */
    uint64_t cookies;
    bool sending;                        /* a thread sends without the lock; only it changes the members below */
    bool blocked;                        /* the socket has no room */
    struct nbd_request *sent[MOST_SENT]; /* requests that are being sent, from `first` on */
    unsigned first, count;
    char headers[MOST_SENT][NBD_MAX_HEADER];
    struct iovec parts[2 * MOST_SENT], *part; /* their bytes; `part` is the first part that is left */
    unsigned parts_left;
    struct replies replies; /* for the client's thread */
};

struct session {
    uint64_t number; /* 0 before the first session */
    uint32_t life;   /* iou_nbd_life */
    struct agreed agreed;
    struct connection *connections; /* kept until the next session */
    uint32_t count;
    uint64_t ending;           /* the failure for requests after its end has begun, or 0 before that */
    uint64_t ending_before;    /* the same for the previous session */
    bool broken;               /* it ends now */
    uint64_t deadline;         /* ns: the time at which it ends at the latest */
    uint64_t changed, flushed; /* how many changes were answered, and how many of them a flush has covered */
    bool gave_up_changes;      /* it has ended with unanswered changes, which the server may still make */
    uint64_t longest_bare;     /* most bytes of a request without data, known after a refusal, or 0 */
};

struct client {
    struct image image;
    uint64_t zero_unit;
    bool allocation;
    uint32_t close_ms;
    int event_fd; /* for Python */
    int wake_fd;  /* for the thread */
    pthread_mutex_t lock;
    pthread_t thread;
    bool started, stopping;
    bool leaving; /* no session begins any more */
    bool wanted;
    atomic_bool written; /* there was a change */
    struct session session;
    struct link entering, waiting; /* lists of struct entering and struct calls */
    struct link served;            /* waiters to wake; only the client's thread uses it */
    uint64_t failures_count;
    iou_nbd_failure failures[MOST_FAILURES]; /* by their numbers */
    iou_nbd_failure flush_failure, unusable; /* the number is 0 if there is none */
};

static inline struct client *client_of(const iou_handle *handle) {
    return container_of(handle->image, struct client, image);
}

/* ---- state.c: failures; the lock is held ------------------------------------------------------------------------ */

/* Keep a failure, and return its number. `request` is NULL if it is not the failure of a request. */
uint64_t failure_add(struct client *client, uint32_t kind, const struct nbd_request *request, int error,
                     const char *text, size_t length);
uint64_t failure_gone(struct client *client, const char *text);

/* Find a failure. Returns NULL if it is too long ago. */
const iou_nbd_failure *failure_find(const struct client *client, uint64_t number);

/* ---- state.c; the lock is held ---------------------------------------------------------------------------------- */

/* Note that a request has its reply, or the failure that is set in it. If all requests of its waiter have ended, the
   waiter is added to `served`. */
void request_ended(struct nbd_request *request, struct link *served);

/* Remove a request from those that wait for their replies. */
void connection_forget(struct connection *connection, struct nbd_request *request);

/* Note that the reply to a request that was sent is complete, and end the request. Counts it if it is a change that
   only a flush puts on stable storage. */
void request_answered(struct connection *connection, struct nbd_request *request, struct link *served);

/* Have the client's thread end the session now. */
void session_break(struct client *client, uint64_t failure);

/* End the session in order: it accepts no more requests, and waits `wait_ms` for replies. */
void session_leave(struct client *client, uint64_t failure, uint64_t wait_ms);

/* Notify Python that the state has changed. client_wake() wakes the client's thread. */
void client_notify(struct client *client);
void client_wake(struct client *client);

/* ---- sending.c; the lock is held -------------------------------------------------------------------------------- */

/* Send the requests of the queue, as far as the socket takes them. Releases the lock during that. */
void connection_send(struct connection *connection, struct link *served);

/* End the requests that were canceled before they were begun. */
void connection_drop_canceled(struct connection *connection, struct link *served);

/* ---- session.c; the lock is held -------------------------------------------------------------------------------- */

/* Prepare a connection. Returns 0 or -ENOMEM. */
int connection_init(struct connection *connection, struct client *client, const iou_nbd_connection *told);

/* End the session if it can end now. For the client's thread. */
void session_end(struct client *client);

/* Free the connections of a session that has ended. */
void session_free(struct client *client);

/* ---- loop.c ----------------------------------------------------------------------------------------------------- */

void *loop_main(void *client);

/* ---- interface.c, extents.c ------------------------------------------------------------------------------------- */

/* Free the client of a handle. Its session has ended. */
void client_free(iou_handle *handle);

extern const struct image_ops NBD_IMAGE;

#endif
