/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Lanes of HTTP: connections with requests for one image. A lane does its requests in their order, one at a time. It
 * ends and gives the connection back at a request that it does not serve, or when no request arrives for IDLE_MS. A
 * lane with an instruction does that one, and ends.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/nbd_client.h"
#include "http/http.h"

/* A connection without a request for this time is given back, so that it does not need a thread. */
#define IDLE_MS 1000

_Static_assert(IOU_NBD_PIECE == MEMORY_PIECE, "a piece of an image that a server has is in one piece of memory");

/* ---- the work of the leader ------------------------------------------------------------------------------------- */

/* Whether there is work for the leader: a request to read, a piece to take, or a failed request to end. */
static bool has_work(const struct http *http) {
    if (!http->busy)
        return true;
    uint32_t most = http->request.kind == IOU_READ && http->pauses ? 1 : http->ahead;
    return http->body.left && (http->failed ? http->under_way == 0 : http->under_way < most);
}

/* Wait for work while other tasks have all pieces, and watch whether the client leaves. False: the lane ends. */
static bool await_work(struct iou_lane *lane) {
    const struct http *http = http_of(lane);
    while (!lane->state.leaving && !has_work(http))
        lane_watch(lane, http->request.kind != IOU_WRITE || http->body.left == 0);
    return !lane->state.leaving;
}

/* Choose the size of pieces. Writes to an image on a server have the pieces of the image. With a rate limit, pieces are
   shorter, so that all connections of a ticket move data each second. */
static void choose_pieces(struct iou_lane *lane) {
    const struct pieces *pieces = &lane->handle->image->pieces;
    struct http *http = http_of(lane);
    http->piece = HTTP_PIECE;
    http->ahead = HTTP_AHEAD;
    if (pieces->piece) {
        bool reads = http->request.kind == IOU_READ;
        http->piece = reads ? min_u64(pieces->piece, HTTP_REMOTE_PIECE) : pieces->piece;
        http->ahead = reads ? HTTP_REMOTE_AHEAD : pieces->ahead;
    }
    for (uint64_t most = max_u64(lane_rate_piece(lane), HTTP_FIRST_PIECE); http->piece > most;)
        http->piece = max_u64(http->piece / 2, HTTP_FIRST_PIECE);
}

static void http_begin(struct iou_lane *lane) {
    struct http *http = http_of(lane);
    bool moves = http->request.kind == IOU_READ || http->request.kind == IOU_WRITE;
    choose_pieces(lane);
    body_begin(&http->body, http->request.offset, moves ? http->request.length : 0);
    if (http->request.encoded)
        body_begin_encoded(&http->body, http->request.body);
    if (http->request.chunked)
        body_begin_chunked(&http->body);
    iou_record what = http_describe(&http->request);
    work_begin(&http->running, now_ns(), &what);
    http->taken = http->sent = 0;
    http->started = false;
    http->busy = true;
    lane->state.active = true;
    if (!http->instruction) /* the owner counts it */
        lane->state.requests++;
    lane->state.running++;
    if (!http->failed && http->request.expects)
        http_answer_continue(lane);
}

static bool give_connection_back(struct http *http, iou_http_reason reason) {
    http->end = (iou_http_end){.reason = (uint32_t)reason};
    return false;
}

/* Receive bytes of the next request, as socket_stage(). 0: also if the lane gives its place away. */
static ssize_t await_request(struct iou_lane *lane, int ms) {
    lane->state.rests = true; /* first: iou_lanes_recall() reads it after it has changed the count of wanted places */
    ssize_t count = lane->state.requests && lane_gives_place(lane) ? 0 : socket_stage(lane, HTTP_ROOM, ms);
    lane->state.rests = false;
    return count;
}

/* Begin with the instruction. False: it was carried out, and the lane ends. */
static bool begin_instruction(struct iou_lane *lane) {
    struct http *http = http_of(lane);
    if (http->instruction == CARRIED_OUT)
        return give_connection_back(http, IOU_HTTP_DONE);
    http->instruction = CARRIED_OUT;
    if (!http_is_allowed(lane))
        http_note_outside(lane, http->request.offset, http->request.length);
    http_begin(lane);
    return true;
}

/* Read the next request. All of it except data has to arrive within IDLE_MS. False: there is none, and the lane
   ends. */
static bool read_request(struct iou_lane *lane) {
    uint64_t deadline = now_ns() + min_u64((uint64_t)lane->timeout_ms, IDLE_MS) * 1000000;
    enum http_found found = HTTP_MORE;
    if (lane->state.requests && lane_gives_place(lane))
        return give_connection_back(http_of(lane), IOU_HTTP_IDLE);
    while (!lane_refuses(lane) && (found = http_take(lane)) != HTTP_WHOLE) {
        if (found == HTTP_OTHER)
            return give_connection_back(http_of(lane), IOU_HTTP_OTHER);
        int ms = ms_until(deadline);
        ssize_t count = ms ? await_request(lane, ms) : 0;
        if (count == 0 || count == -ETIMEDOUT || count == -ECANCELED)
            return give_connection_back(http_of(lane), IOU_HTTP_IDLE);
        if (count < 0) {
            lane_break(lane, (int)-count);
            return false;
        }
    }
    if (found != HTTP_WHOLE) /* a request that was taken begins, also if the lane refuses requests now */
        return give_connection_back(http_of(lane), IOU_HTTP_IDLE);
    http_begin(lane);
    return true;
}

static bool http_lead(struct task *task) {
    struct iou_lane *lane = task->lane;
    struct http *http = http_of(lane);
    do {
        if (!await_work(lane))
            return false;
        if (!http->busy && !(http->instruction ? begin_instruction : read_request)(lane))
            return false;
        if (http->failed) {
            http_fail(lane);
            return false;
        }
    } while (http_serve(task));
    return true;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

static void free_http(struct http *http) {
    work_destroy(&http->running);
    free(http->target);
    free(http->done.text);
    free(http->partial.text);
    free(http->whole.text);
    free(http->origin.text);
    free(http->instructed.text);
    free(http);
}

static void http_end(struct iou_lane *lane) {
    body_end_encoded(&http_of(lane)->body);
    free_http(http_of(lane));
}

static char *copy_bytes(const void *data, uint64_t length) {
    char *made = malloc(length + 1);
    if (made && length)
        memcpy(made, data, length);
    return made;
}

static struct http_template template(const void *text, uint64_t length) {
    return (struct http_template){copy_bytes(text, length), length};
}

/* Whether the text is a template. Each replaced byte occurs at most once, so that MAX_FILLED limits the answer. */
static bool is_template(const char *text, uint64_t length) {
    unsigned seen[IOU_HTTP_ORIGIN + 1] = {0};
    for (uint64_t i = 0; i < length && length <= HTTP_MAX_TEMPLATE; i++)
        if (text[i] >= IOU_HTTP_FIRST && text[i] <= IOU_HTTP_ORIGIN && seen[(int)text[i]]++)
            return false;
    return length && length <= HTTP_MAX_TEMPLATE;
}

static bool are_options_valid(const iou_http_options *options) {
    return options->target_length && options->target_length <= HTTP_MAX_HEAD &&
           is_template(options->done, options->done_length) && is_template(options->partial, options->partial_length) &&
           is_template(options->whole, options->whole_length) && options->origin_length <= HTTP_MAX_TEMPLATE &&
           (!options->instruction.kind || is_template(options->instruction.answer, options->instruction.answer_length));
}

static struct http *new_http(const iou_http_options *options) {
    struct http *http = calloc(1, sizeof(*http));
    if (!http)
        return NULL;
    work_init(&http->running);
    http->target = copy_bytes(options->target, options->target_length);
    http->target_length = options->target_length;
    http->generation = options->generation;
    http->done = template(options->done, options->done_length);
    http->partial = template(options->partial, options->partial_length);
    http->whole = template(options->whole, options->whole_length);
    http->origin = template(options->origin, options->origin_length);
    http->instructed = template(options->instruction.answer, options->instruction.answer_length);
    if (http->target && http->done.text && http->partial.text && http->whole.text && http->origin.text &&
        http->instructed.text)
        return http;
    free_http(http);
    return NULL;
}

static struct lane_work *http_work_of(struct task *task) {
    return &http_of(task->lane)->running;
}

static const struct lane_kind HTTP = {
    .thread_name = "http-lane",
    .finishes = true,
    .lead = http_lead,
    .work = http_work_of,
    .end = http_end,
};

int iou_http_start(iou_lanes *lanes, iou_handle *handle, const iou_http_options *options, iou_lane **result) {
    if (lanes_are_foreign(lanes))
        return -ECHILD;
    if (!are_options_valid(options))
        return -EINVAL;
    struct http *http = new_http(options);
    if (!http)
        return -ENOMEM;
    int error = 0;
    if (options->instruction.kind && !http_take_instruction(http, &options->instruction))
        error = -EINVAL;
    if (!error)
        error = lane_start(lanes, handle, &options->lane, &HTTP, http, result);
    if (error)
        free_http(http);
    return error;
}

int iou_http_ended(iou_lane *lane, iou_http_end *end, void *rest) {
    if (lanes_are_foreign(lane->lanes))
        return -ECHILD;
    pthread_mutex_lock(&lane->tasks.lock);
    bool ended = lane->tasks.ended && lane->kind == &HTTP;
    pthread_mutex_unlock(&lane->tasks.lock);
    if (!ended)
        return -EBUSY;
    *end = http_of(lane)->end;
    if (lane->state.broken)
        end->reason = IOU_HTTP_BROKEN;
    uint32_t left = staged(&lane->staging);
    memcpy(rest, staged_bytes(&lane->staging), left);
    return (int)left;
}
