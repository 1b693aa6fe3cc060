/* SPDX-License-Identifier: Apache-2.0 */

/*
 * HTTP in lanes: the requests that a lane serves (take.c), answers and the end of a request (ending.c), doing
 * requests (requests.c), and the order of the steps (lane.c).
 *
 * A lane serves only plain requests, and gives others back unread. It does not write refusals: it also gives back plain
 * requests that it cannot serve, and the owner of the lane answers a request that fails.
 */

#ifndef IOUTIL_HTTP_HTTP_H
#define IOUTIL_HTTP_HTTP_H

#include <time.h>

#include "http/plain.h"
#include "lane/body.h"
#include "lane/lane.h"
#include "lane/operations.h"
#include "lane/waits.h"

/*
 * Data is moved in pieces that end at multiples of HTTP_PIECE, with HTTP_AHEAD pieces of a request under way at a time:
 * while one is in storage, another one is in the socket. Measured with PUT and GET of 64 MiB, one connection, on a busy
 * machine, in multiples of the rate of Python in the same minute: 1.14 and 1.18. With pieces of 2 MiB: 1.28 and 1.23,
 * but 10 MiB more memory for four connections. With two pieces at a time: 0.82 and 0.97, of 2 MiB 1.15 and 1.01.
 */
#define HTTP_PIECE MIB
#define HTTP_AHEAD 3u

/*
 * The same of an answer from an image that an NBD server has: its buffers and ours stay in the processor's cache then.
 * Ranges of 4 MiB from qemu-nbd on tmpfs, two processors that others used, too, 3 rounds in turns. 8 connections: 380
 * and 367 MB/s with 3 and 8 under way; 250 with 4 of 512 KiB, 179 with 3 of 2 MiB. 1 connection: 171, 323, 256, 167.
 * Of a server that takes 4 ms to answer: 262, 381, 295, 254, and with 1 connection 94, 178, 143, 152.
 */
#define HTTP_REMOTE_PIECE (256 * KIB)
#define HTTP_REMOTE_AHEAD 8u

/*
 * The first piece of a connection, and the next one after it was slow. Pieces grow fourfold while the client makes
 * progress. So a client that sends or takes nothing has little memory, and of many clients that begin together each
 * gets memory soon.
 */
#define HTTP_FIRST_PIECE (64 * KIB)

/*
 * The pieces of an answer to a client that pauses, one at a time: about as much as a socket takes. Of longer pieces,
 * much would be read again and again. After HTTP_UNPAUSED bytes without a pause, more than a socket holds, the client
 * counts as fast again.
 */
#define HTTP_SLOW_PIECE (128 * KIB)
#define HTTP_UNPAUSED (8 * MIB)

/* Most bytes of a template of the owner. */
#define HTTP_MAX_TEMPLATE (4 * KIB)

/* A template: an answer or a head in which the lane replaces bytes with numbers and the date. */
struct http_template {
    char *text;
    uint64_t length;
};

struct http_request {
    uint32_t kind; /* iou_kind */
    bool flush, fast;
    bool expects;    /* PUT: the client waits for 100 Continue (RFC 9110 10.1.1) */
    bool encoded;    /* PUT: the body is a frame of zstd */
    bool chunked;    /* PUT: the body comes in chunks */
    bool unbounded;  /* PUT: its length is known when its end has come; length is what has come */
    uint32_t asks;   /* iou_asks */
    uint32_t status; /* of the answer */
    uint64_t offset, length;
    uint64_t body; /* PUT: bytes of the body as it is sent, unless it comes in chunks */
    const struct http_template *answer;
};

struct http {
    char *target;
    uint64_t target_length;
    struct http_template done, partial, whole, origin;
    struct http_template instructed; /* the answer to an instruction */
    enum { NO_INSTRUCTION, INSTRUCTED, CARRIED_OUT } instruction;
    uint64_t generation; /* of the image that whole and partial are for; 0: any */
    char date[30];       /* of `second` */
    time_t second;

    /*
     * The request that runs. Each leader takes one of its pieces. The task that takes the last piece ends the request.
     * If it fails before, the leader ends it when no piece is under way.
     */
    struct http_request request;
    struct lane_work running; /* for its owner and the log */
    uint64_t piece;           /* bytes; its pieces end at multiples */
    uint32_t ahead;           /* most pieces under way at a time */
    struct body body;         /* for the leader; also of a body that is sent */
    uint32_t taken;           /* for the leader: pieces taken */
    bool pauses;              /* the client has paused in an answer lately */
    uint64_t moved;           /* bytes of data since the client began, was slow or paused */
    bool busy;                /* a request runs */
    bool failed;
    uint32_t under_way; /* pieces that were taken and have not ended */
    uint32_t sent;      /* pieces of a GET that were sent; the number of the next one */
    bool started;       /* a part of the answer was sent */
    iou_http_end end;   /* why the lane ends; why the request has failed */
};

/* Return kind, flags and range of a request for its record. */
static inline iou_record http_describe(const struct http_request *request) {
    return (iou_record){
        .offset = request->offset,
        .length = request->length,
        .kind = request->kind,
        .flags = (request->flush ? IOU_FUA : 0) | (request->fast ? IOU_FAST_ONLY : 0),
    };
}

static inline struct http *http_of(const struct iou_lane *lane) {
    return lane->own;
}

/* ---- which requests --------------------------------------------------------------------------------------------- */

/* Take the next request from the staging. HTTP_OTHER: it is not for a lane, and no byte was taken. */
enum http_found http_take(struct iou_lane *lane);

/* Take an instruction. False: it contradicts itself. */
bool http_take_instruction(struct http *http, const iou_instruction *instruction);

/* Whether the request that runs is for bytes that the ticket and the image allow it to have. */
bool http_is_allowed(const struct iou_lane *lane);

/* Whether the ticket and the image allow a change of this range. An image that grows may be smaller. */
bool http_may_write(const struct iou_lane *lane, uint64_t offset, uint64_t length);

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* Send 100 Continue, which tells the client to send its body (RFC 9110 10.1.1). */
void http_answer_continue(struct iou_lane *lane);

/* Send data of a GET until the client pauses. first: with the head before it. Returns how many bytes of data were sent.
 */
uint64_t http_answer_data(struct iou_lane *lane, char *data, uint64_t length, bool first);

/* ---- the end of a request --------------------------------------------------------------------------------------- */

/* Fail the request that runs. Only the first failure counts. op: the operation that has failed, or NULL. */
void http_note_failure(struct http *http, iou_http_reason reason, const struct op *op);

/* Fail the request that runs with an errno that is not from storage. */
void http_fail_outside(struct http *http, int error);

/* Fail the request that runs because bytes are not in ticket and image. */
void http_note_outside(struct iou_lane *lane, uint64_t offset, uint64_t length);

/* Run an operation. False: it has failed, and the request with it. */
bool http_run(struct task *task, struct op *op);

/* Let the tasks look that wait for a change of the request that runs. */
void http_changed(struct iou_lane *lane);

/* End a request of which no piece is under way: flush if the client asked for it, and answer. After a failure, as
   http_fail(). */
void http_finish(struct task *task);

/* End a request that has failed, of which no piece is under way. */
void http_fail(struct iou_lane *lane);

/* ---- how -------------------------------------------------------------------------------------------------------- */

/* Do the request that runs, or one piece of it. Returns whether this task still leads. */
bool http_serve(struct task *task);

#endif
