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
 * The same for an answer from an image that an NBD server has. With small pieces, the buffers of the server and of the
 * lane stay in the cache of the processor. Measured with ranges of 4 MiB from qemu-nbd on tmpfs, on two processors that
 * others used as well, 3 rounds in turns, in MB/s. 8 connections: 380 and 367 with 3 and 8 pieces under way, 250 with 4
 * of 512 KiB, 179 with 3 of 2 MiB; 1 connection: 171, 323, 256, 167. From a server that takes 4 ms to answer: 262, 381,
 * 295, 254; 1 connection: 94, 178, 143, 152.
 */
#define HTTP_REMOTE_PIECE (256 * KIB)
#define HTTP_REMOTE_AHEAD 8u

/*
 * The first piece of a connection, and the next piece after a client was slow. Pieces grow fourfold while the client
 * makes progress. So a client that neither sends nor reads has little memory, and if many clients begin together, each
 * gets memory soon.
 */
#define HTTP_FIRST_PIECE (64 * KIB)

/*
 * The size of a piece for a client that pauses, which gets one piece at a time. It is about as much as a socket takes:
 * of a longer piece, much would be read again and again. After HTTP_UNPAUSED bytes without a pause, which is more than
 * a socket holds, the client counts as fast again.
 */
#define HTTP_SLOW_PIECE (128 * KIB)
#define HTTP_UNPAUSED (8 * MIB)

/* Most bytes of a template that the owner passes. */
#define HTTP_MAX_TEMPLATE (4 * KIB)

/* An answer, or the head of one, in which the lane replaces some bytes with numbers and the date. */
struct http_template {
    char *text;
    uint64_t length;
};

struct http_request {
    uint32_t kind; /* iou_kind */
    bool flush, fast;
    bool expects;    /* PUT: the client waits for 100 Continue (RFC 9110 10.1.1) */
    bool encoded;    /* PUT: the body is a frame of zstd */
    bool chunked;    /* PUT: the body is in chunks */
    bool unbounded;  /* PUT: its length is known only at its end; `length` is how much has arrived */
    uint32_t asks;   /* iou_asks */
    uint32_t status; /* of the answer */
    uint64_t offset, length;
    uint64_t body; /* PUT: bytes of the body as it is sent, unless it is in chunks */
    const struct http_template *answer;
};

struct http {
    char *target;
    uint64_t target_length;
    struct http_template done, partial, whole, origin;
    struct http_template instructed; /* the answer to an instruction */
    enum { NO_INSTRUCTION, INSTRUCTED, CARRIED_OUT } instruction;
    uint64_t generation; /* the generation of the image for which whole and partial are valid, or 0 for any */
    char date[30];       /* the date of `second` */
    time_t second;

    /* The running request. Each leader takes one of its pieces. The task that takes the last piece ends the request. If
       the request fails before that, the leader ends it when no piece is under way. */
    struct http_request request;
    struct lane_work running; /* for its owner and the log */
    uint64_t piece;           /* pieces end at multiples of this number of bytes */
    uint32_t ahead;           /* most pieces under way at a time */
    struct body body;         /* for the leader; also for a body that is sent */
    uint32_t taken;           /* for the leader: pieces taken */
    bool pauses;              /* the client has paused in an answer lately */
    uint64_t moved;           /* bytes of data since the client began, was slow or paused */
    bool busy;                /* a request runs */
    bool failed;
    uint32_t under_way; /* pieces that were taken and have not ended */
    uint32_t sent;      /* pieces of a GET that were sent, so the number of the next one */
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

/* Take the next request from the staging. Returns HTTP_OTHER, and takes no byte, if the request is not for a lane. */
enum http_found http_take(struct iou_lane *lane);

/* Take an instruction. Returns false if it contradicts itself. */
bool http_take_instruction(struct http *http, const iou_instruction *instruction);

/* Return whether the ticket and the image allow the running request its range. */
bool http_is_allowed(const struct iou_lane *lane);

/* Return whether the ticket and the image allow a change of this range. An image that grows may be smaller than that.
 */
bool http_may_write(const struct iou_lane *lane, uint64_t offset, uint64_t length);

/* ---- answers ---------------------------------------------------------------------------------------------------- */

/* Send 100 Continue, which tells the client to send its body (RFC 9110 10.1.1). */
void http_answer_continue(struct iou_lane *lane);

/* Send data of a GET until the client pauses. With `first`, send the head before it. Returns how many bytes of data
   were sent. */
uint64_t http_answer_data(struct iou_lane *lane, char *data, uint64_t length, bool first);

/* ---- the end of a request --------------------------------------------------------------------------------------- */

/* Fail the running request. Only the first failure counts. `op` is the operation that has failed, or NULL. */
void http_note_failure(struct http *http, iou_http_reason reason, const struct op *op);

/* Fail the running request with an errno that is not from storage. */
void http_fail_outside(struct http *http, int error);

/* Fail the running request because its range is not in ticket and image. */
void http_note_outside(struct iou_lane *lane, uint64_t offset, uint64_t length);

/* Run an operation. Returns false if it has failed; then the running request has failed, too. */
bool http_run(struct task *task, struct op *op);

/* Let the tasks check again that wait for a change of the running request. */
void http_changed(struct iou_lane *lane);

/* End a request when no piece of it is under way: flush if the client has requested it, and answer. After a failure, do
   as http_fail(). */
void http_finish(struct task *task);

/* End a request that has failed, when no piece of it is under way. */
void http_fail(struct iou_lane *lane);

/* ---- doing requests --------------------------------------------------------------------------------------------- */

/* Do the running request, or one piece of it. Returns whether this task still leads. */
bool http_serve(struct task *task);

#endif
