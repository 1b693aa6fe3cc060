/* SPDX-License-Identifier: Apache-2.0 */

/*
 * HTTP in lanes: heads (http_head.c), the JSON of a PATCH (http_patch.c), which requests a lane serves (http_take.c),
 * how (http_requests.c), answers (http_answers.c), the order of it all (http_lane.c).
 *
 * Only what is plain is served. Whatever else comes is given back unread, and refusals are not written here: a request
 * that cannot be served is given back, too, and one that fails is answered by the owner of the lane.
 */

#ifndef IOUTIL_HTTP_H
#define IOUTIL_HTTP_H

#include <time.h>

#include "lane.h"

/* ---- heads ------------------------------------------------------------------------------------------------------ */

/* A head of a request that a lane serves: some fields, one ticket id. A longer one is somebody else's. */
#define HTTP_MAX_HEAD (4 * KIB)
#define HTTP_MAX_FIELDS 32u

/* Digits of a number: it is below 2^63 then. */
#define HTTP_MAX_DIGITS 18u

/* The JSON of a PATCH. Programs send less than 100 bytes. */
#define HTTP_MAX_PATCH KIB

/* What is received at once while there is no head: a head, and all of a request with 4 KiB of data. */
#define HTTP_ROOM (8 * KIB)

_Static_assert(HTTP_ROOM > HTTP_MAX_HEAD + HTTP_MAX_PATCH, "a request that is staged whole");

enum http_method { HTTP_GET, HTTP_PUT, HTTP_PATCH };

/* OTHER: it is not for a lane; MORE: nobody knows yet. */
enum http_found { HTTP_OTHER, HTTP_MORE, HTTP_WHOLE };

/* A piece of text. */
struct http_text {
    const char *at, *end;
};

struct http_head {
    enum http_method method;
    bool flush;                   /* PUT: put it on stable storage */
    uint32_t size;                /* bytes of the head */
    uint64_t length;              /* of the body */
    uint64_t first, last;         /* GET: the range */
    struct http_text name, value; /* of the field that is looked at */
};

/* Parse a head that is at the beginning of the data. target: the path of the image that is served. */
enum http_found http_parse_head(struct http_text data, struct http_text target, struct http_head *head);

/* Move over what is expected; false: something else is there. */
bool http_skip(struct http_text *text, const char *expected);

/* Move over a number of ASCII digits. False: there is none, or it is too long. */
bool http_number(struct http_text *text, uint64_t *number);

struct http_patch {
    bool is_flush; /* and nothing else */
    bool flush, fast;
    uint64_t offset, size;
};

/* False: it says something else, or in another way. */
bool http_parse_patch(struct http_text body, struct http_patch *patch);

/* ---- the lane --------------------------------------------------------------------------------------------------- */

/*
 * Data is moved in pieces, which end at multiples of this, and so many of a request are under way at a time: while one
 * is in storage another one is in the socket. PUT and GET of 64 MiB, one connection, to the rate of Python in the same
 * minute, busy machine: 1.14 and 1.18; 2 MiB: 1.28 and 1.23, with 10 MiB more memory for four connections; two at a
 * time: 0.82 and 0.97, with 2 MiB 1.15 and 1.01.
 */
#define HTTP_PIECE MIB
#define HTTP_AHEAD 3u

/*
 * Pieces of an answer to a client that pauses, one at a time: what a socket takes. With longer ones much would be read
 * again and again. It is taken for a fast one again after so many bytes: more than a socket holds.
 */
#define HTTP_SLOW_PIECE (128 * KIB)
#define HTTP_UNPAUSED (8 * MIB)

/* How long the next piece is where so many bytes are left. */
static inline uint64_t http_piece_length(uint64_t offset, uint64_t left) {
    return left <= HTTP_PIECE ? left : HTTP_PIECE - offset % HTTP_PIECE;
}

/* Bytes of a text that the owner has made for answers. */
#define HTTP_MAX_TEMPLATE (4 * KIB)

struct http_request {
    uint32_t kind; /* iou_kind */
    bool flush, fast;
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
    struct http_template done, partial;
    char date[30]; /* of second; whose turn it is to answer */
    time_t second;

    /*
     * The request that runs. Its pieces are taken by whoever leads; who takes the last one ends it, and if it fails
     * before, the one who leads when no piece is under way.
     */
    struct http_request request;
    uint64_t next, left;  /* the leader's: what no piece was taken of. left: 0 when there is nothing to take */
    uint32_t taken;       /* the leader's: pieces */
    struct memory *first; /* the leader's: memory for the first piece */
    bool slow;            /* the leader's: of a body came less than the staging in a moment */
    atomic_bool pauses;   /* the client did so in an answer lately */
    uint64_t unpaused;    /* bytes sent since; whose turn it is to answer */
    atomic_bool busy;     /* there is one */
    atomic_bool watched;  /* the leader waits for a change of these */
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

/* Take the next request from what was received, with memory for its first piece. OTHER: nothing was taken. */
enum http_found http_take(struct iou_lane *lane);

/* ---- how -------------------------------------------------------------------------------------------------------- */

/* Do the request, or a piece of it. Returns whether this thread still leads. */
bool http_serve(struct lane_thread *thread);

/* End a request that has failed, of which no piece is under way. */
void http_fail(struct iou_lane *lane);

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* All went well. */
void http_answer_done(struct iou_lane *lane);

/* Send data of a GET until the client pauses; first: with the head before it. Returns how many bytes of it were sent.
 */
uint64_t http_answer_data(struct iou_lane *lane, char *data, uint64_t length, bool first);

#endif
