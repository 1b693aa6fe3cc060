/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The client of an image: a session of connections to its server. One thread receives, and sends what the socket did
 * not take at once (loop.c). The lock of the client is held neither over a wait nor over a system call on a socket that
 * moves bytes. No other lock but that of TLS is taken while it is held.
 */

#ifndef IOUTIL_NBD_CLIENT_CLIENT_H
#define IOUTIL_NBD_CLIENT_CLIENT_H

#include <pthread.h>

#include "base/waiter.h"
#include "image/handle.h"
#include "nbd_client/replies.h"

/* Requests of a connection whose replies are not complete. The others wait in its queue. */
#define MOST_FLYING 64u
/* Requests that one call sends. */
#define MOST_SENT 16u
/* Failures that are kept. */
#define MOST_FAILURES 64u

/* Requests of one operation that are under way together, and who waits until all of them have ended. */
struct calls {
    struct waiter waiter;
    uint32_t left;
    iou_control *control; /* NULL: they cannot be canceled */
};

/* An operation that waits for a session. */
struct entering {
    struct waiter waiter;
    iou_control *control;
    uint64_t refused; /* the number of a failure; 0: there is a session */
};

struct connection {
    struct requests requests; /* for its parser */
    struct client *client;
    int fd; /* -1: it was closed */
    iou_tls *tls;
    struct contexts contexts;                /* that the server tells on it */
    struct link queue;                       /* requests that were not begun */
    struct nbd_request *flying[MOST_FLYING]; /* by the lowest bits of their cookies */
    uint64_t free;                           /* bits of places in it */
    uint64_t cookies;
    bool sending;                        /* a thread sends, without the lock; only it changes what follows */
    bool blocked;                        /* the socket has no room */
    struct nbd_request *sent[MOST_SENT]; /* requests that are being sent, from `first` on */
    unsigned first, count;
    char headers[MOST_SENT][NBD_MAX_HEADER];
    struct iovec parts[2 * MOST_SENT], *part; /* their bytes; part: the first one that is left */
    unsigned parts_left;
    struct replies replies; /* for the client's thread */
};

struct session {
    uint64_t number; /* 0: there was none */
    uint32_t life;   /* iou_nbd_life */
    struct agreed agreed;
    struct connection *connections; /* until the next session */
    uint32_t count;
    uint64_t ending;           /* the failure of requests after its end began; 0: it has not begun */
    uint64_t ending_before;    /* the same of the session before */
    bool broken;               /* it ends now */
    uint64_t deadline;         /* ns: it ends then, if it does not before */
    uint64_t changed, flushed; /* changes that were answered, and those of them that a flush has covered */
    bool gave_up_changes;      /* it has ended with changes unanswered, which the server may make at any time */
    uint64_t longest_bare;     /* bytes of a request without data, after a refusal of a longer one; 0: not known */
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
    struct link entering, waiting; /* of entering and calls */
    struct link served;            /* to be woken by the thread, which alone uses it */
    uint64_t failures_count;
    iou_nbd_failure failures[MOST_FAILURES]; /* by their numbers */
    iou_nbd_failure flush_failure, unusable; /* number 0: there is none */
};

static inline struct client *client_of(const iou_handle *handle) {
    return container_of(handle->image, struct client, image);
}

/* ---- state.c: failures; the lock is held ------------------------------------------------------------------------ */

/* Keep a failure, and return its number. request: NULL: it is of none. */
uint64_t failure_add(struct client *client, uint32_t kind, const struct nbd_request *request, int error,
                     const char *text, size_t length);
uint64_t failure_gone(struct client *client, const char *text);

/* Find a failure. NULL: it is too long ago. */
const iou_nbd_failure *failure_find(const struct client *client, uint64_t number);

/* ---- state.c; the lock is held ---------------------------------------------------------------------------------- */

/* A request has its reply, or the failure that is set. Waiters whose requests have all ended are added to served. */
void request_ended(struct nbd_request *request, struct link *served);

/* Take a request out of those that wait for their replies. */
void connection_forget(struct connection *connection, struct nbd_request *request);

/* The reply to a request that was sent is complete: count it if it is a change that only a flush puts on stable
   storage, and end it. */
void request_answered(struct connection *connection, struct nbd_request *request, struct link *served);

/* End the session now. The client's thread does it. */
void session_break(struct client *client, uint64_t failure);

/* End it in order: it takes no requests any more, and so many ms are left for replies. */
void session_leave(struct client *client, uint64_t failure, uint64_t wait_ms);

/* Tell Python that the state has changed; wake the client's thread. */
void client_notify(struct client *client);
void client_wake(struct client *client);

/* ---- sending.c; the lock is held -------------------------------------------------------------------------------- */

/* Send what the queue has, as far as the socket takes it. Releases the lock meanwhile. */
void connection_send(struct connection *connection, struct link *served);

/* End the requests that were canceled before they were begun. */
void connection_drop_canceled(struct connection *connection, struct link *served);

/* ---- session.c; the lock is held -------------------------------------------------------------------------------- */

/* Prepare a connection. -ENOMEM. */
int connection_init(struct connection *connection, struct client *client, const iou_nbd_connection *told);

/* For the client's thread: end the session if it can end now. */
void session_end(struct client *client);

/* Free the connections of a session that has ended. */
void session_free(struct client *client);

/* ---- loop.c ----------------------------------------------------------------------------------------------------- */

void *loop_main(void *client);

/* ---- interface.c, extents.c ------------------------------------------------------------------------------------- */

/* Free the client of a handle, whose session has ended. */
void client_free(iou_handle *handle);

extern const struct image_ops NBD_IMAGE;

#endif
