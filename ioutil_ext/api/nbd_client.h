/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Images that an NBD server has. Python connects and negotiates, and hands over the connections, which are a session.
 * C sends requests and receives replies until the session ends; then Python connects again when an operation wants to.
 * Operations are those of api/ioutil.h, on the handle of the image. cffi's cdef() reads this after api/tls.h and
 * api/ioutil.h, whose conventions apply.
 */

#ifndef IOUTIL_API_NBD_CLIENT_H
#define IOUTIL_API_NBD_CLIENT_H

#include <stdint.h>

#include "api/ioutil.h"
#include "api/tls.h"

enum {
    IOU_NBD_CONNECTIONS = 16, /* most of a session */
    IOU_NBD_CONTEXTS = 64,    /* most metadata contexts */
    IOU_NBD_TEXT = 256,       /* bytes of the text of a failure, with its NUL */
    IOU_NBD_PIECE = 2097152   /* bytes: the largest piece, which is in one piece of memory */
};

typedef struct {
    const char *name;    /* for logs, without secrets; copied, cut to fit */
    uint64_t device;     /* of the server: its images share quotas of memory and threads, as those of a device do */
    uint64_t size;       /* bytes, at most 2^63 - 1 */
    uint64_t piece;      /* bytes; requests with data end at multiples of it: a power of two, 64 KiB to IOU_NBD_PIECE */
    uint64_t zero_unit;  /* bytes: ranges of whole units are sure to be zeroed without data I/O; 0: none are */
    uint32_t ahead;      /* pieces of one request of a lane that are under way at a time: 1 to 16 */
    uint32_t block_size; /* bytes: the server's minimum, a power of two, at most 64 KiB */
    uint32_t allocation; /* 0: zeroing with IOU_ALLOCATE is never fast */
    uint32_t close_ms;   /* for the server's replies when a session ends in order */
} iou_nbd_client_options;

/* A metadata context, and what it tells: iou_extent_flag, IOU_EXTENT_DIRTY of the first bitmap, the next bit of the
   second one, and so on. */
typedef struct {
    uint32_t id;
    uint64_t tells;
} iou_nbd_context;

/* A connection, and what was selected on it. C owns the socket, which is non-blocking, once the session has begun. TLS
   is used until the end of the session. */
typedef struct {
    int socket;
    uint32_t contexts_count; /* at most IOU_NBD_CONTEXTS */
    const iou_nbd_context *contexts;
    iou_tls *tls; /* NULL: it has none */
} iou_nbd_connection;

/* What was negotiated, and the connections. All of them have the contexts of the first one; or some of these, if the
   server promises that its connections are coherent (CAN_MULTI_CONN). */
typedef struct {
    const iou_nbd_connection *connections;
    uint32_t count;      /* of connections, at most IOU_NBD_CONNECTIONS */
    uint32_t flags;      /* the export's transmission flags */
    uint32_t structured; /* replies */
    uint32_t extended;   /* headers */
    uint32_t most;       /* bytes of a request's data: the maximum block size, at most 32 MiB */
} iou_nbd_session;

typedef enum {
    IOU_NBD_NONE = 0, /* there is no session, and none of its connections is open */
    IOU_NBD_ALIVE,    /* it takes requests */
    IOU_NBD_ENDING    /* it takes none: its replies are waited for, or its connections are being closed */
} iou_nbd_life;

typedef struct {
    uint32_t life;      /* iou_nbd_life */
    uint32_t wanted;    /* operations wait for a session */
    uint32_t unflushed; /* changes may be lost if nothing is flushed any more, or are already */
    uint32_t written;   /* there was a write, zero or trim */
} iou_nbd_client_state;

typedef enum {
    IOU_NBD_GONE = 1, /* the server cannot be reached, or the session has ended; text: why, without its name */
    IOU_NBD_REFUSED,  /* it has answered with an error; text: its words */
    IOU_NBD_UNSOUND,  /* its answer cannot be; text: why */
    IOU_NBD_NO_FLUSH, /* it does not offer to flush */
    IOU_NBD_UNUSABLE  /* iou_nbd_client_refuse() */
} iou_nbd_failing;

/* Why an operation has failed. The completion has its number in `size`, and IOU_SYS_SERVER. */
typedef struct {
    uint64_t number;
    uint32_t kind;    /* iou_nbd_failing */
    uint32_t command; /* of NBD */
    uint64_t offset;
    uint64_t length;
    int32_t error; /* a positive errno */
    char text[256];
} iou_nbd_failure;

/* Make the handle of an image, without a session. -EINVAL, -ENOMEM, -EMFILE. */
int iou_nbd_client_new(const iou_nbd_client_options *options, iou_handle **result);

/* The eventfd of the handle: readable when its state has changed. Owned by the handle. */
int iou_nbd_client_fd(iou_handle *handle);

/* Get the state. clear: and clear the eventfd. 0 or -ECHILD. */
int iou_nbd_client_look(iou_handle *handle, iou_nbd_client_state *state, uint32_t clear);

/* Begin a session. -EINVAL; -EBUSY: there is one; -ENOMEM, -EAGAIN: no thread can be started; -ECHILD. */
int iou_nbd_client_begin(iou_handle *handle, const iou_nbd_session *session);

/* Let the operations fail that wait for a session. text: why. Returns the number of the failure. forever: later ones
   fail, too, whether or not there is a session. */
uint64_t iou_nbd_client_refuse(iou_handle *handle, const char *text, uint32_t forever);

/* End the session in order: its requests are answered, or wait_ms have passed, and the server is told. No other one
   begins. 0 or -ECHILD. */
int iou_nbd_client_leave(iou_handle *handle, uint32_t wait_ms);

/* Controls were canceled: end operations that wait, and of which nothing was sent. 0 or -ECHILD. */
int iou_nbd_client_interrupt(iou_handle *handle);

/* Get a failure by its number. 0; -ENOENT: it is too long ago; -ECHILD. */
int iou_nbd_client_failure(iou_handle *handle, uint64_t number, iou_nbd_failure *failure);

/* Drop the owner's reference to the handle. -EBUSY: the session has not ended; -ECHILD. */
int iou_nbd_client_free(iou_handle *handle);

#endif
