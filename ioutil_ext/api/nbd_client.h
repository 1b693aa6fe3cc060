/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Images on an NBD server. Python connects and negotiates, then hands the connections over to C. Together they are a
 * session. C sends requests and receives replies until the session ends. Python connects again when an operation wants
 * a session. Operations are those of api/ioutil.h, on the handle of the image. cffi's cdef() reads this after api/tls.h
 * and api/ioutil.h, whose conventions apply.
 */

#ifndef IOUTIL_API_NBD_CLIENT_H
#define IOUTIL_API_NBD_CLIENT_H

#include <stdint.h>

#include "api/ioutil.h"
#include "api/tls.h"

enum {
    IOU_NBD_CONNECTIONS = 16, /* most connections of a session */
    IOU_NBD_CONTEXTS = 64,    /* most metadata contexts of a connection */
    IOU_NBD_TEXT = 256,       /* bytes of the text of a failure, with its NUL */
    IOU_NBD_PIECE = 2097152   /* bytes of the largest piece, which is in one piece of memory */
};

typedef struct {
    const char *name;    /* for logs, without secrets; copied, cut to fit */
    uint64_t device;     /* identifies the server: its images share quotas of memory and threads, as on one device */
    uint64_t size;       /* bytes, at most 2^63 - 1 */
    uint64_t piece;      /* requests with data end at multiples of it: a power of two, 64 KiB to IOU_NBD_PIECE */
    uint64_t zero_unit;  /* bytes of a unit: the server zeroes whole units without data I/O; 0 if it may not */
    uint32_t ahead;      /* pieces of one request of a lane that may be under way at a time, 1 to 16 */
    uint32_t block_size; /* the server's minimum in bytes, a power of two, at most 64 KiB */
    uint32_t allocation; /* 0 if zeroing with IOU_ALLOCATE is never fast */
    uint32_t close_ms;   /* how long to wait for the server's replies when a session ends in order */
} iou_nbd_client_options;

/* A metadata context. `tells` is the iou_extent_flag that it reports: IOU_EXTENT_DIRTY for the first bitmap, the next
   higher bit for the second one, and so on. */
typedef struct {
    uint32_t id;
    uint64_t tells;
} iou_nbd_context;

/* A connection, and the contexts that were selected on it. The socket is non-blocking. Once the session has begun, C
   owns the socket, and uses the TLS until the end of the session. */
typedef struct {
    int socket;
    uint32_t contexts_count; /* at most IOU_NBD_CONTEXTS */
    const iou_nbd_context *contexts;
    iou_tls *tls; /* or NULL */
} iou_nbd_connection;

/* The connections, and what was negotiated. Each connection has the contexts of the first one. If the server promises
   that its connections are coherent (CAN_MULTI_CONN), it may have only some of them. */
typedef struct {
    const iou_nbd_connection *connections;
    uint32_t count;      /* number of connections, at most IOU_NBD_CONNECTIONS */
    uint32_t flags;      /* the export's transmission flags */
    uint32_t structured; /* replies are structured */
    uint32_t extended;   /* headers are extended */
    uint32_t most;       /* most bytes of a request's data: the maximum block size, at most 32 MiB */
} iou_nbd_session;

typedef enum {
    IOU_NBD_NONE = 0, /* there is no session, and none of its connections is open */
    IOU_NBD_ALIVE,    /* it takes requests */
    IOU_NBD_ENDING    /* it takes no more: it waits for replies, or its connections are being closed */
} iou_nbd_life;

typedef struct {
    uint32_t life;      /* iou_nbd_life */
    uint32_t wanted;    /* operations wait for a session */
    uint32_t unflushed; /* changes were not flushed yet, or may be lost already */
    uint32_t written;   /* there was a write, zero or trim */
} iou_nbd_client_state;

typedef enum {
    IOU_NBD_GONE = 1, /* unreachable, or the session has ended; the text is the reason, without names */
    IOU_NBD_REFUSED,  /* the server has answered with an error; the text is the server's */
    IOU_NBD_UNSOUND,  /* the server's answer is impossible; the text is the reason */
    IOU_NBD_NO_FLUSH, /* the server does not offer FLUSH */
    IOU_NBD_UNUSABLE  /* after iou_nbd_client_refuse() */
} iou_nbd_failing;

/* Why an operation has failed. Its completion has IOU_SYS_SERVER, and the number of the failure in `size`. */
typedef struct {
    uint64_t number;
    uint32_t kind;    /* iou_nbd_failing */
    uint32_t command; /* of NBD */
    uint64_t offset;
    uint64_t length;
    int32_t error; /* a positive errno */
    char text[256];
} iou_nbd_failure;

/* Make the handle of an image, without a session. Returns 0, -EINVAL, -ENOMEM or -EMFILE. */
int iou_nbd_client_new(const iou_nbd_client_options *options, iou_handle **result);

/* Return the eventfd of the handle, which is readable when the state has changed. It belongs to the handle. */
int iou_nbd_client_fd(iou_handle *handle);

/* Get the state. With `clear`, also clear the eventfd. Returns 0 or -ECHILD. */
int iou_nbd_client_look(iou_handle *handle, iou_nbd_client_state *state, uint32_t clear);

/* Begin a session. Returns 0, -EINVAL, -EBUSY if there is one, -ENOMEM, -EAGAIN if no thread can be started, or
   -ECHILD. */
int iou_nbd_client_begin(iou_handle *handle, const iou_nbd_session *session);

/* Fail all operations that wait for a session, with the reason `text`. With `forever`, also fail all later operations,
   even if there is a session. Returns the number of the failure. */
uint64_t iou_nbd_client_refuse(iou_handle *handle, const char *text, uint32_t forever);

/* End the session in order, and begin no other one. Waits at most `wait_ms` until its requests are answered, then sends
   NBD_CMD_DISC. Returns 0 or -ECHILD. */
int iou_nbd_client_leave(iou_handle *handle, uint32_t wait_ms);

/* End the waiting operations whose controls were canceled and of which nothing was sent. Returns 0 or -ECHILD. */
int iou_nbd_client_interrupt(iou_handle *handle);

/* Get a failure by its number. Returns 0, -ENOENT if it is too long ago, or -ECHILD. */
int iou_nbd_client_failure(iou_handle *handle, uint64_t number, iou_nbd_failure *failure);

/* Drop the owner's reference to the handle. Returns 0, -EBUSY if the session has not ended, or -ECHILD. */
int iou_nbd_client_free(iou_handle *handle);

#endif
