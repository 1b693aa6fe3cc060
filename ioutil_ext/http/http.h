/* SPDX-License-Identifier: Apache-2.0 */

/*
 * HTTP in lanes: which requests a lane serves (take.c), answers (answers.c), the end of a request (ending.c), how it is
 * done (requests.c), the order of it all (lane.c).
 *
 * Only what is plain is served. Whatever else comes is given back unread, and refusals are not written here: a request
 * that cannot be served is given back, too, and one that fails is answered by the owner of the lane.
 */

#ifndef IOUTIL_HTTP_HTTP_H
#define IOUTIL_HTTP_HTTP_H

#include <time.h>

#include "http/plain.h"
#include "lane/body.h"
#include "lane/connection.h"
#include "lane/lane.h"
#include "lane/operations.h"
#include "lane/records.h"

/*
 * Data is moved in pieces, which end at multiples of this, and so many of a request are under way at a time: while one
 * is in storage another one is in the socket. PUT and GET of 64 MiB, one connection, to the rate of Python in the same
 * minute, busy machine: 1.14 and 1.18; 2 MiB: 1.28 and 1.23, with 10 MiB more memory for four connections; two at a
 * time: 0.82 and 0.97, with 2 MiB 1.15 and 1.01. send() in operations/streaming.py is Python's way of the same.
 */
#define HTTP_PIECE MIB
#define HTTP_AHEAD 3u

/*
 * The first piece of a connection, and of one that was slow. Pieces grow fourfold as long as the client goes on: one
 * that sends or takes nothing was lent little. Of many that begin at once each gets some soon.
 */
#define HTTP_FIRST_PIECE (64 * KIB)

/*
 * Pieces of an answer to a client that pauses, one at a time: what a socket takes. With longer ones much would be read
 * again and again. It is taken for a fast one again after so many bytes: more than a socket holds.
 */
#define HTTP_SLOW_PIECE (128 * KIB)
#define HTTP_UNPAUSED (8 * MIB)

/* Bytes of a text that the owner has made for answers. */
#define HTTP_MAX_TEMPLATE (4 * KIB)

struct http_request {
    uint32_t kind; /* iou_kind */
    bool flush, fast;
    bool whole;   /* GET: all of the image */
    bool expects; /* PUT: its body comes when it is told to */
    bool has_origin;
    uint64_t offset, length;
};

/* An answer in which numbers and the date are missing. */
struct http_template {
    char *text;
    uint64_t length;
};

struct http {
    char *target;
    uint64_t target_length;
    struct http_template done, partial, whole, origin;
    uint64_t generation; /* of the image that whole is for; 0: any */
    char date[30];       /* of second; whose turn it is to answer */
    time_t second;

    /*
     * The request that runs. Its pieces are taken by whoever leads; who takes the last one ends it, and if it fails
     * before, the one who leads when no piece is under way.
     */
    struct http_request request;
    uint64_t began;             /* for its record */
    uint64_t piece;             /* bytes of its pieces, which end at multiples */
    uint32_t ahead;             /* so many of them are under way at a time */
    struct body body;           /* the leader's; of what is sent, too */
    uint32_t taken;             /* the leader's: pieces */
    atomic_bool pauses;         /* the client did so in an answer lately */
    atomic_uint_fast64_t moved; /* bytes of data since it began, was slow or paused */
    atomic_bool busy;           /* there is one */
    atomic_bool watched;        /* the leader waits for a change of these */
    atomic_bool failed;
    atomic_uint_fast32_t under_way; /* pieces */

    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t changed;
    uint32_t sent;    /* pieces of a GET; what is sent next */
    bool started;     /* some of the answer was sent */
    iou_http_end end; /* why the lane ends; why the request failed */
};

static inline struct http *http_of(const struct iou_lane *lane) {
    return lane->own;
}

/* ---- which requests --------------------------------------------------------------------------------------------- */

/* Take the next request from what was received. OTHER: nothing was taken. */
enum http_found http_take(struct iou_lane *lane);

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* The client shall send its body. */
void http_answer_continue(struct iou_lane *lane);

/* All went well. */
void http_answer_done(struct iou_lane *lane);

/* Send data of a GET until the client pauses; first: with the head before it. Returns how many bytes of it were sent.
 */
uint64_t http_answer_data(struct iou_lane *lane, char *data, uint64_t length, bool first);

/* ---- the end of a request --------------------------------------------------------------------------------------- */

/* Note why it fails, if it is the first failure; op: what has failed, or NULL. */
void http_note_failure(struct http *http, iou_http_reason reason, const struct op *op);

/* The same, of what has failed outside of storage. */
void http_fail_outside(struct http *http, int error);

/* Run an operation; false: it has failed, and the request with it. */
bool http_run(struct lane_thread *thread, struct op *op);

/* Let the leader look, if it waits for what this thread does. */
void http_tell_leader(struct iou_lane *lane);

/* End a request of which no piece is under way: flush, if that was asked for, and answer; or as http_fail(). */
void http_finish(struct lane_thread *thread);

/* End a request that has failed, of which no piece is under way. */
void http_fail(struct iou_lane *lane);

/* ---- how -------------------------------------------------------------------------------------------------------- */

/* Do the request, or a piece of it. Returns whether this thread still leads. */
bool http_serve(struct lane_thread *thread);

#endif
