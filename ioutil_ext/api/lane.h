/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Connections served in C: requests are read from a socket, done on an image, and answered, by threads of the
 * connection's own. Read by cffi's cdef() after api/ioutil.h; the same conventions.
 */

#ifndef IOUTIL_API_LANE_H
#define IOUTIL_API_LANE_H

#include <stdint.h>

#include "api/ioutil.h"
#include "api/tls.h"

typedef struct iou_lanes iou_lanes; /* what all lanes share: the engine, and memory for data */
typedef struct iou_lane iou_lane;   /* one connection */

typedef enum {
    IOU_LANE_STRUCTURED = 1,    /* NBD: replies are structured */
    IOU_LANE_EXTENDED = 2,      /* NBD: headers are extended */
    IOU_LANE_ALLOCATION = 4,    /* NBD: BLOCK_STATUS may ask for base:allocation */
    IOU_LANE_READ_ONLY = 8,     /* the ticket is */
    IOU_LANE_SPARSE = 16,       /* the ticket's storage may be given back */
    IOU_LANE_COUNT_READS = 32,  /* iou_lane_counted() tells what was read */
    IOU_LANE_COUNT_WRITES = 64, /* and what was written or zeroed */
    IOU_LANE_NO_FLUSH = 128     /* NBD: neither FLUSH nor FUA are offered */
} iou_lane_flag;

enum {
    IOU_LANES_MIN_MEMORY = 17825792,      /* bytes, 17 MiB: less makes threads wait for each other */
    IOU_LANE_MAX_STAGED = 65536,          /* bytes that a lane takes with its connection, of either direction */
    IOU_LANE_MAX_TIMEOUT_MS = 2147483647, /* 24 days: what poll(2) can wait */
    IOU_LANE_REPORTS = 16,                /* that a lane keeps */
    IOU_RECORDS = 4096                    /* that all lanes keep together */
};

/* The lowest bit of a lease's `expires`: the ticket was ended by hand, and the end of a request does not renew it. */
enum { IOU_LEASE_ENDED = 1 };

/* Until when a ticket lives, and since when nobody has used it: ns of CLOCK_MONOTONIC. */
typedef struct {
    uint64_t timeout; /* each request that ends renews the ticket for so long */
    uint64_t expires; /* one word with IOU_LEASE_ENDED, so that no renewal comes between the two */
    uint64_t active;  /* when the last request ended */
} iou_lease;

typedef struct {
    int fd;              /* the connection, which is the lane's when it has begun */
    iou_tls *tls;        /* its TLS, which nobody else uses until the lane has ended; NULL: it has none */
    uint32_t flags;      /* iou_lane_flag */
    uint64_t size;       /* of the ticket, at most 2^63 - 1 */
    uint32_t timeout_ms; /* a peer that makes no progress for so long, while it is its turn, is left */
    uint32_t reserved;
    uint64_t number;      /* by which records name the lane */
    const void *rest;     /* what was received already of the client; copied */
    uint64_t rest_length; /* bytes, at most IOU_LANE_MAX_STAGED */
    iou_control *control; /* canceled ends requests, and C sets it when the connection breaks */
    iou_lease *lease;     /* both live until the lane is freed */
} iou_lane_options;

typedef struct {
    uint64_t requests;            /* that were begun; of HTTP, without one that the owner is to answer */
    uint64_t received;            /* bytes, besides what the lane was given */
    uint64_t sent;                /* bytes of replies to requests */
    uint64_t zeroed[IOU_METHODS]; /* bytes, by iou_method */
    uint64_t reports_lost;        /* there were more than somebody fetched in time */
    uint64_t storage_wait;        /* ns for which storage has owed an answer */
    uint32_t running;             /* operations in storage; 1 if a request runs that has none there now */
    uint32_t ended;               /* nothing is left but this */
    int32_t error;                /* why it ended: a positive errno of the socket, ETIMEDOUT, EPROTO, or 0 */
    uint32_t ranges;              /* that iou_lane_counted() would move now, at most */
} iou_lane_stats;

/* What storage did that somebody should know. */
typedef struct {
    uint64_t offset;
    uint64_t length;
    uint64_t elapsed; /* ns */
    uint32_t kind;    /* iou_kind */
    int32_t error;    /* 0 or a positive errno */
    int32_t syscall;
    uint16_t given_up[IOU_ZEROING_CALLS];
    uint32_t reserved;
} iou_lane_report;

typedef struct {
    uint64_t start;
    uint64_t end;
} iou_range;

/* A request that has ended. */
typedef struct {
    uint64_t lane; /* the number of its lane */
    uint64_t offset;
    uint64_t length;
    uint64_t elapsed; /* ns since its head was there, until its answer was sent */
    uint32_t kind;    /* HTTP: iou_kind; NBD: the command */
    uint32_t flags;   /* HTTP: iou_flag, IOU_FUA: with a flush; NBD: as they came */
    uint32_t result;  /* HTTP: the status, 0: the owner is to answer it; NBD: the error, 0: none */
    int32_t error;    /* HTTP: 0 or the positive errno that it failed of */
} iou_record;

/* Since the beginning. */
typedef struct {
    uint64_t written; /* records that were, or are just being written */
    uint64_t read;
    uint64_t lost; /* records for which there was no room */
} iou_records_stats;

/* memory: bytes for data of all lanes at a time, at least IOU_LANES_MIN_MEMORY. -EINVAL, -ENOMEM, -ECHILD. */
int iou_lanes_new(iou_engine *engine, uint64_t memory, iou_lanes **result);

/*
 * So many more connections wait for the place of a lane of HTTP, or 0: none does any more. As many lanes give theirs
 * back: those at once that have no request, then each that ends one. Nothing in a forked child.
 */
void iou_lanes_recall(iou_lanes *lanes, uint32_t more);

/* -EBUSY while there are lanes, -ECHILD. */
int iou_lanes_free(iou_lanes *lanes);

/* Begin to record requests, or, 0, cease to. Those that have begun before are not recorded. */
void iou_records_want(iou_lanes *lanes, uint32_t wanted);

/* Move records, at most max, the oldest first; returns how many, or -ECHILD. */
int iou_records_read(iou_lanes *lanes, iou_record *records, uint32_t max);

/* All 0 in a forked child. */
void iou_records_get_stats(iou_lanes *lanes, iou_records_stats *stats);

/* An eventfd, readable when there are reports, many ranges, or the end. The lane's. */
int iou_lane_fd(iou_lane *lane);

/* Begin no more requests and, when none runs, end: NBD refuses them and closes. Nothing in a forked child. */
void iou_lane_refuse(iou_lane *lane);

/* Close the connection now; what runs in storage ends there. Nothing in a forked child. */
void iou_lane_abort(iou_lane *lane);

/* All 0 in a forked child. */
void iou_lane_get_stats(iou_lane *lane, iou_lane_stats *stats);

/*
 * Clear the eventfd and move reports, at most max; returns how many, or -ECHILD. Before looking for the end: it may
 * come after.
 */
int iou_lane_reports(iou_lane *lane, iou_lane_report *reports, uint32_t max);

/* Move ranges, sorted and apart from each other, at most max; returns how many, or -ECHILD. */
int iou_lane_counted(iou_lane *lane, iou_range *ranges, uint32_t max);

/* Free a lane that has ended. -EBUSY, -ECHILD. */
int iou_lane_free(iou_lane *lane);

/* ---- NBD: the transmission phase -------------------------------------------------------------------------------- */

/* What the image has not got of the ticket's size reads as zeros. */
typedef struct {
    iou_lane_options lane;
    uint32_t context; /* id of base:allocation */
    uint32_t errors_count;
    const uint32_t *errors; /* the NBD error of each errno, by its number; what is missing is EIO; copied */
    const void *reply;      /* what the client is still to be told of the negotiation; copied */
    uint64_t reply_length;  /* bytes, at most IOU_LANE_MAX_STAGED */
} iou_nbd_options;

/*
 * Serve a connection. That the lane must end is said by iou_lane_refuse(). -EINVAL, -ENOMEM, -EMFILE, -EBADF: the
 * handle was closed, -EAGAIN: no thread, -ECHILD.
 */
int iou_nbd_start(iou_lanes *lanes, iou_handle *handle, const iou_nbd_options *options, iou_lane **result);

/* ---- HTTP: requests for one image ------------------------------------------------------------------------------- */

/* Bytes of a template in whose place something is written, each once at most. */
enum { IOU_HTTP_FIRST = 1, IOU_HTTP_LAST = 2, IOU_HTTP_LENGTH = 3, IOU_HTTP_DATE = 4, IOU_HTTP_ORIGIN = 5 };

/* What the image has not got of the ticket's size is not read here. A request that has begun is finished. */
typedef struct {
    iou_lane_options lane;
    const void *target; /* the path of the image; all are copied */
    uint64_t target_length;
    const void *done; /* the answer to what went well: the date */
    uint64_t done_length;
    const void *partial; /* the head of an answer with a range: first and last byte, their number, the date */
    uint64_t partial_length;
    const void *whole; /* the head of an answer with all of the image: the number of bytes, the date */
    uint64_t whole_length;
    const void *origin; /* the fields that a request with Origin gets besides, where IOU_HTTP_ORIGIN stands */
    uint64_t origin_length;
    uint64_t generation; /* of the image that `whole` is for, see iou_handle_generation(); 0: any */
} iou_http_options;

typedef enum {
    IOU_HTTP_IDLE = 1,  /* no request came for a while, the client sends no more, or none is begun any more */
    IOU_HTTP_OTHER,     /* what comes next is not for a lane, or there is no memory for it */
    IOU_HTTP_FAILED,    /* storage failed: the request is to be answered */
    IOU_HTTP_TRUNCATED, /* the body of a request ended early: it is to be answered */
    IOU_HTTP_CUT,       /* storage failed when the answer had begun: the connection is to be cut */
    IOU_HTTP_BROKEN     /* the connection is of no use any more; iou_lane_stats says why */
} iou_http_reason;

typedef struct {
    uint32_t reason; /* iou_http_reason; the others are of a request that failed */
    int32_t error;   /* a positive errno; ECANCELED: the transfer was cancelled */
    int32_t syscall;
    uint32_t kind;  /* iou_kind */
    uint32_t flags; /* iou_flag */
    uint32_t reserved;
    uint64_t offset;
    uint64_t length;
    uint64_t size;   /* of the image, as of iou_completion */
    uint64_t unread; /* bytes of its body that were not taken: what is left of the client's bytes begins with them */
} iou_http_end;

/* Serve requests for an image on a connection. Returns as iou_nbd_start() does. */
int iou_http_start(iou_lanes *lanes, iou_handle *handle, const iou_http_options *options, iou_lane **result);

/*
 * Tell why a lane has ended, and move the client's bytes that were received and not taken, IOU_LANE_MAX_STAGED at most,
 * to rest; returns how many, -EBUSY or -ECHILD. The socket is as it was, for whoever has it.
 */
int iou_http_ended(iou_lane *lane, iou_http_end *end, void *rest);

#endif
