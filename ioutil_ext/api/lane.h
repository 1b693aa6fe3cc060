/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Lanes: connections that C serves. The thread of a lane reads requests from the socket, does them on the image, and
 * answers them. cffi's cdef() reads this after api/ioutil.h, whose conventions apply.
 */

#ifndef IOUTIL_API_LANE_H
#define IOUTIL_API_LANE_H

#include <stdint.h>

#include "api/bucket.h"
#include "api/head.h"
#include "api/ioutil.h"
#include "api/tls.h"
#include "api/zstd.h"

typedef struct iou_lanes iou_lanes; /* shared by all lanes: the engine, memory for data, limits, records */
typedef struct iou_lane iou_lane;   /* one connection */

typedef enum {
    IOU_LANE_STRUCTURED = 1,    /* NBD: replies are structured */
    IOU_LANE_EXTENDED = 2,      /* NBD: headers are extended */
    IOU_LANE_STATUS = 4,        /* NBD: metadata contexts were selected, so there is BLOCK_STATUS */
    IOU_LANE_READ_ONLY = 8,     /* the ticket is read-only */
    IOU_LANE_SPARSE = 16,       /* zeroing may deallocate */
    IOU_LANE_COUNT_READS = 32,  /* iou_lane_counted() returns the ranges that were read */
    IOU_LANE_COUNT_WRITES = 64, /* iou_lane_counted() returns the ranges that were written or zeroed */
    IOU_LANE_NO_FLUSH = 128     /* NBD: neither FLUSH nor FUA is offered */
} iou_lane_flag;

enum {
    IOU_LANES_MIN_MEMORY = 17825792,      /* bytes, 17 MiB: with less, requests wait for each other */
    IOU_LANE_MAX_STAGED = 65536,          /* most bytes that a lane takes over with its connection, in each direction */
    IOU_LANE_MAX_TIMEOUT_MS = 2147483647, /* 24 days: the longest wait of poll(2) */
    IOU_LANE_CONTEXTS = 63,               /* most metadata contexts of NBD: base:allocation and 62 bitmaps */
    IOU_LANE_REPORTS = 16,                /* most reports that a lane keeps */
    IOU_RECORDS = 4096                    /* most records that all lanes keep together */
};

/* The lowest bit of a lease's `expires`. It is set when the manager has ended the ticket: no request renews it then. */
enum { IOU_LEASE_ENDED = 1 };

/* The expiry and the last use of a ticket, in ns of CLOCK_MONOTONIC. */
typedef struct {
    uint64_t timeout; /* the end of a request renews the ticket for this time */
    uint64_t expires; /* with IOU_LEASE_ENDED in the same word, so that a renewal changes both or neither */
    uint64_t active;  /* the end of the last request */
    uint64_t number;  /* identifies the ticket in this process; it is never used again */
} iou_lease;

typedef struct {
    int fd;              /* the socket, which the lane owns once it has started */
    iou_tls *tls;        /* TLS of the connection, which only the lane uses until its end; NULL: there is none */
    uint32_t flags;      /* iou_lane_flag */
    uint64_t size;       /* the ticket's size in bytes, at most 2^63 - 1 */
    uint32_t timeout_ms; /* the connection ends when the peer has made no progress for this time */
    uint32_t reserved;
    uint64_t number;      /* identifies the lane in records */
    const void *rest;     /* bytes that were received already; copied */
    uint64_t rest_length; /* bytes, at most IOU_LANE_MAX_STAGED */
    iou_control *control; /* setting `canceled` ends requests; C sets it when the connection breaks */
    iou_lease *lease;
    iou_bucket *bucket; /* the rate limit, or NULL. Control, lease and bucket live until the lane is freed */
} iou_lane_options;

typedef struct {
    uint64_t requests;            /* requests that have begun; HTTP: without one that the owner answers */
    uint64_t received;            /* bytes, without `rest` of the options */
    uint64_t sent;                /* bytes of replies to requests */
    uint64_t zeroed[IOU_METHODS]; /* bytes, by iou_method */
    uint64_t read, written;       /* bytes of operations that have ended */
    uint64_t failed;              /* NBD: requests that were answered with an error */
    uint64_t reports_lost;        /* reports that were dropped, because the owner had not fetched earlier ones */
    uint64_t storage_wait;        /* ns for which the operation that waits longest has waited for storage */
    uint32_t running;             /* operations in storage, or 1 if a request runs without one */
    uint32_t ended;               /* the lane has ended, and the owner may call iou_lane_free() */
    int32_t error;                /* why it has ended: 0, a positive errno of the socket, ETIMEDOUT or EPROTO */
    uint32_t ranges;              /* most ranges that iou_lane_counted() would move now */
} iou_lane_stats;

/* The memory for data of all lanes. */
typedef struct {
    uint64_t limit;   /* bytes, without the memory for one long READ */
    uint64_t used;    /* bytes of slabs that are in use, even if only in part */
    uint32_t waiting; /* tickets whose requests wait for memory */
    uint32_t reserved;
} iou_lanes_stats;

/* A report of an operation that has failed, was slow, or has given up a method. */
typedef struct {
    uint64_t offset;
    uint64_t length;
    uint64_t elapsed; /* ns */
    uint32_t kind;    /* iou_kind */
    int32_t error;    /* 0 or a positive errno */
    int32_t syscall;
    uint16_t given_up[IOU_ZEROING_CALLS];
    uint32_t reserved;
    uint64_t size; /* as in iou_completion */
} iou_lane_report;

/* What a request waits for. */
typedef enum {
    IOU_WAIT_PEER,    /* bytes of its client, or room for bytes to it */
    IOU_WAIT_LIMIT,   /* the rate limit */
    IOU_WAIT_STORAGE, /* storage */
    IOU_WAIT_TURN,    /* its turn: for memory, for its device, or after earlier changes that it overlaps */
    IOU_WAITS
} iou_wait;

/* A request that has ended, or that runs. */
typedef struct {
    uint64_t lane; /* the number of its lane */
    uint64_t offset;
    uint64_t length;
    uint64_t elapsed; /* ns from the arrival of its head to the end of its answer */
    uint32_t kind;    /* HTTP: iou_kind; NBD: the command */
    uint32_t flags;   /* HTTP: iou_flag, IOU_FUA for a flush; NBD: the flags that the client sent */
    uint32_t result;  /* HTTP: the status, or 0 if the owner answers the request; NBD: the error, or 0 */
    int32_t error;    /* 0, or the positive errno of the failure; NBD: only if the connection has ended the request */
    uint64_t waited[IOU_WAITS]; /* how many of these ns it has waited, by iou_wait; no time counts twice */
} iou_record;

/* Counters of all records. */
typedef struct {
    uint64_t written; /* records that were written, or are being written */
    uint64_t read;
    uint64_t lost; /* records for which there was no room */
} iou_records_stats;

/* Make the state that lanes share. All lanes together use at most `memory` bytes for data at a time, which must be at
   least IOU_LANES_MIN_MEMORY. Returns 0, -EINVAL, -ENOMEM or -ECHILD. */
int iou_lanes_new(iou_engine *engine, uint64_t memory, iou_lanes **result);

/* Get how much memory lanes have now, and how many tickets have requests that wait for memory. All are 0 in a forked
   child. */
void iou_lanes_get_stats(iou_lanes *lanes, iou_lanes_stats *stats);

/*
 * Make `more` further lanes of HTTP give their connections back, because other connections wait for their places. With
 * 0, withdraw this, because no connection waits any more. A lane without a request gives its connection back at once,
 * others when their request ends. Does nothing in a forked child.
 */
void iou_lanes_recall(iou_lanes *lanes, uint32_t more);

/* Free the state that lanes share. Returns 0, -EBUSY while there are lanes, or -ECHILD. */
int iou_lanes_free(iou_lanes *lanes);

/* From now on, record requests that took at least `least` ns. UINT64_MAX, as at first, records none. */
void iou_records_want(iou_lanes *lanes, uint64_t least);

/* Move at most max records into the array, the oldest first. Returns how many, or -ECHILD. */
int iou_records_read(iou_lanes *lanes, iou_record *records, uint32_t max);

/* Get the counters of records. All are 0 in a forked child. */
void iou_records_get_stats(iou_lanes *lanes, iou_records_stats *stats);

/* The eventfd of the lane. Readable when there are reports or many ranges, and at the end. Owned by the lane. */
int iou_lane_fd(iou_lane *lane);

/* Begin no more requests, and end when none runs. A lane of NBD refuses new requests, then closes. Does nothing in a
   forked child. */
void iou_lane_refuse(iou_lane *lane);

/* Read no more requests of NBD, and end when those that have begun are answered. Later requests get no answer, so the
   client may send them to the next server. Does nothing in a forked child. */
void iou_lane_leave(iou_lane *lane);

/* Close the connection now. Operations that run in storage end by themselves. Does nothing in a forked child. */
void iou_lane_abort(iou_lane *lane);

/* Get the counters of a lane. All are 0 in a forked child. */
void iou_lane_get_stats(iou_lane *lane, iou_lane_stats *stats);

/* Get the request that has run longest now. Its `result` is the iou_wait that it is in, or IOU_WAITS if it does not
   wait. Returns 1, 0 if no request runs, or -ECHILD. */
int iou_lane_oldest(iou_lane *lane, iou_record *record);

/* Get the operation that has run longest now. Returns 1, 0 if none runs, or -ECHILD. */
int iou_lane_slowest(iou_lane *lane, iou_running *record);

/*
 * Clear the eventfd, and move at most `max` reports into the array. Returns how many, or -ECHILD. Call this before you
 * check whether the lane has ended: if it ends after the check, the eventfd is set again.
 */
int iou_lane_reports(iou_lane *lane, iou_lane_report *reports, uint32_t max);

/* Move at most max ranges into the array, sorted and neither adjacent nor overlapping. Returns how many, or -ECHILD. */
int iou_lane_counted(iou_lane *lane, iou_range *ranges, uint32_t max);

/* Free a lane that has ended. Returns 0, -EBUSY if it has not, or -ECHILD. */
int iou_lane_free(iou_lane *lane);

/* ---- NBD: the transmission phase -------------------------------------------------------------------------------- */

/* A metadata context that was selected. `tells` is the iou_extent_flag that it reports: IOU_EXTENT_ZERO for
   base:allocation, or that of a bitmap of the image, as in api/nbd_client.h. */
typedef struct {
    uint32_t id;
    uint64_t tells;
} iou_lane_context;

/* The options of an NBD lane. Bytes of the ticket's size past the end of the image read as zeros. */
typedef struct {
    iou_lane_options lane;
    const iou_lane_context *contexts; /* replies have them in this order; copied */
    uint32_t contexts_count;          /* at most IOU_LANE_CONTEXTS; with IOU_LANE_STATUS at least one */
    uint32_t errors_count;
    const uint32_t *errors; /* the NBD error for each errno; EIO where it is 0, and past the end; copied */
    const void *reply;      /* the last reply of the negotiation, which the lane sends first; copied */
    uint64_t reply_length;  /* bytes, at most IOU_LANE_MAX_STAGED */
} iou_nbd_options;

/*
 * Start a lane of NBD. It ends by itself, or after iou_lane_refuse(), iou_lane_leave() or iou_lane_abort(). Returns 0,
 * -EINVAL, -ENOMEM, -EMFILE, -EBADF if the handle was closed, -EAGAIN if no thread can be started, or -ECHILD.
 */
int iou_nbd_start(iou_lanes *lanes, iou_handle *handle, const iou_nbd_options *options, iou_lane **result);

/* ---- HTTP: requests for one image ------------------------------------------------------------------------------- */

/* Bytes of a template that a lane replaces with a value. Each occurs at most once. */
enum { IOU_HTTP_FIRST = 1, IOU_HTTP_LAST = 2, IOU_HTTP_LENGTH = 3, IOU_HTTP_DATE = 4, IOU_HTTP_ORIGIN = 5 };

typedef enum {
    IOU_INSTRUCTION_FLUSH = 1,     /* write: the bytes are on stable storage before the answer */
    IOU_INSTRUCTION_EXPECTS = 2,   /* write: the client waits for 100 Continue */
    IOU_INSTRUCTION_CHUNKED = 4,   /* write: the body is in chunks */
    IOU_INSTRUCTION_ENCODED = 8,   /* write: the body is a frame of zstd */
    IOU_INSTRUCTION_UNBOUNDED = 16 /* write, in chunks, not encoded: write all bytes that arrive */
} iou_instruction_flag;

/* A request that the owner has read and decided. The lane moves its bytes and answers it. */
typedef struct {
    uint32_t kind;  /* IOU_READ or IOU_WRITE, or 0 if there is no instruction */
    uint32_t flags; /* iou_instruction_flag */
    uint64_t offset;
    uint64_t length; /* bytes of the image; 0 with IOU_INSTRUCTION_UNBOUNDED */
    uint64_t body;   /* write: bytes of the body as it is sent; 0 if it is in chunks */
    uint32_t status; /* the status of the answer, for the record */
    uint32_t reserved;
    const void *answer; /* template of the answer, or of its head, with the date; copied */
    uint64_t answer_length;
} iou_instruction;

/*
 * The options of an HTTP lane. It does not serve reads past the end of the image, and it finishes requests that have
 * begun. All texts are copied.
 */
typedef struct {
    iou_lane_options lane;
    const void *target; /* the path of the image */
    uint64_t target_length;
    const void *done; /* template of an answer without data, with the date */
    uint64_t done_length;
    const void *partial; /* template of a head for a range, with first and last byte, length and date */
    uint64_t partial_length;
    const void *whole; /* template of a head for the whole image, with length and date */
    uint64_t whole_length;
    const void *origin; /* fields that replace IOU_HTTP_ORIGIN in an answer to a request with Origin */
    uint64_t origin_length;
    uint64_t generation; /* the iou_handle_generation() for which `whole` and `partial` are valid, or 0 for any */
    iou_instruction instruction; /* the lane does this and ends; the owner has read the head, and counts the request */
} iou_http_options;

typedef enum {
    IOU_HTTP_IDLE = 1,  /* no request for a while, the client has ended the stream, or the lane refuses requests */
    IOU_HTTP_OTHER,     /* the next request is not for a lane, or there is no memory for it */
    IOU_HTTP_FAILED,    /* storage has failed: the owner answers the request */
    IOU_HTTP_TRUNCATED, /* the body of a request has ended early: the owner answers the request */
    IOU_HTTP_ENCODING,  /* the encoded body of a request is refused: the owner answers the request */
    IOU_HTTP_CHUNKS,    /* the framing of a body in chunks is refused: the owner answers the request */
    IOU_HTTP_RANGE,     /* the range of an instruction is not in ticket and image: the owner answers the request */
    IOU_HTTP_DONE,      /* the instruction was carried out, and the request answered */
    IOU_HTTP_CUT,       /* storage has failed after the start of the answer: the owner cuts the connection */
    IOU_HTTP_BROKEN     /* the connection has failed; iou_lane_stats has the errno */
} iou_http_reason;

typedef struct {
    uint32_t reason; /* iou_http_reason; the other fields are about the request that has failed, if one has */
    int32_t error;   /* a positive errno; ECANCELED if the transfer was cancelled */
    int32_t syscall;
    uint32_t kind;  /* iou_kind */
    uint32_t flags; /* iou_flag */
    uint32_t asks;  /* iou_asks */
    uint64_t offset;
    uint64_t length;
    uint64_t size;    /* the size of the image, as in iou_completion */
    uint64_t unread;  /* bytes of its body that the lane has not taken; the rest of iou_http_ended() begins with them */
    uint32_t refusal; /* an iou_zstd_refusal for IOU_HTTP_ENCODING, an iou_chunks_refusal for IOU_HTTP_CHUNKS */
    uint32_t reserved;
    iou_chunks chunks; /* for a body in chunks, the state of its reader before the rest of iou_http_ended() */
} iou_http_end;

/* Start a lane of HTTP. Returns as iou_nbd_start() does. */
int iou_http_start(iou_lanes *lanes, iou_handle *handle, const iou_http_options *options, iou_lane **result);

/*
 * Get the reason why a lane has ended, and move the bytes that it has received and not used to `rest`, at most
 * IOU_LANE_MAX_STAGED. Returns how many, -EBUSY or -ECHILD. The state of the socket is as before the lane's start, so
 * the owner can continue to use it.
 */
int iou_http_ended(iou_lane *lane, iou_http_end *end, void *rest);

#endif
