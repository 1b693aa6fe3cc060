/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How requests are done: one after the other. Zeros, flushes and what fits one piece are done by the leader. The pieces
 * of a longer body are taken by one leader after the other: while one thread writes, the next one receives; while one
 * sends, the next one reads.
 */

#include <errno.h>
#include <string.h>

#include "http.h"

struct piece {
    struct memory *memory;
    char *data;
    uint64_t offset, length;
    uint32_t number;
    bool last;
    struct op op;
};

/* ---- failures --------------------------------------------------------------------------------------------------- */

/* Note the first one. */
static void fail(struct http *http, iou_http_reason reason, const struct op *op) {
    pthread_mutex_lock(&http->lock);
    if (!http->failed) {
        http->end = (iou_http_end){.reason = (uint32_t)reason};
        if (op) {
            http->end.error = op->result.error;
            http->end.syscall = op->result.syscall;
            http->end.kind = op->kind;
            http->end.flags = op->flags;
            http->end.offset = op->offset;
            http->end.length = op->length;
            http->end.size = op->result.size;
        }
        http->failed = true;
    }
    pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock);
}

/* Outside of storage. */
static void fail_outside(struct http *http, int error) {
    struct op op = {.kind = http->request.kind, .result.error = error};
    fail(http, IOU_HTTP_FAILED, &op);
}

static bool run(struct lane_thread *thread, struct op *op) {
    int error = operation_run(thread, op);
    counts_report(thread->lane, op, 0); /* an error is told by who answers it */
    if (error)
        fail(http_of(thread->lane), IOU_HTTP_FAILED, op);
    return error == 0;
}

/* ---- the end of a request --------------------------------------------------------------------------------------- */

/* Let the leader look, if it waits for what this thread does. */
static void tell_leader(struct iou_lane *lane) {
    if (http_of(lane)->watched)
        socket_wake(lane);
}

static void leave_request(struct iou_lane *lane) {
    http_of(lane)->busy = false;
    lane->running--;
    tell_leader(lane);
}

void http_fail(struct iou_lane *lane) {
    struct http *http = http_of(lane);
    http->end.unread = http->request.kind == IOU_WRITE ? http->left : 0;
    if (http->started)
        http->end.reason = IOU_HTTP_CUT;
    lane->active = false;
    lane->leaving = true;
    leave_request(lane);
}

/* What is seen of the ticket is right when the answer is there. */
static void succeed(struct iou_lane *lane) {
    lane->requests++;
    lane->active = false;
    if (http_of(lane)->request.kind != IOU_READ)
        http_answer_done(lane);
    leave_request(lane);
}

static void finish(struct lane_thread *thread) {
    struct http *http = http_of(thread->lane);
    struct op flush = {.kind = IOU_FLUSH};
    if (!http->failed && (!http->request.flush || run(thread, &flush)))
        succeed(thread->lane);
    else
        http_fail(thread->lane);
}

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

/* Take the next piece, without memory. */
static void next_piece(struct http *http, struct piece *piece) {
    uint64_t left = http->left;
    *piece = (struct piece){
        .offset = http->next,
        .length = http_piece_length(http->next, left),
        .number = http->taken,
    };
    piece->last = piece->length == left;
}

/* False: the request ends. */
static bool get_memory(struct iou_lane *lane, struct piece *piece) {
    struct http *http = http_of(lane);
    piece->memory = http->first ? http->first : memory_get(lane, room_for(piece->offset, piece->length), true);
    http->first = NULL;
    if (!piece->memory) {
        fail_outside(http, lane_canceled(lane) ? ECANCELED : ENOMEM);
        return false;
    }
    piece->data = place_in(piece->memory, piece->offset);
    return true;
}

/* Note how much was taken. */
static void advance(struct http *http, uint64_t length) {
    http->next += length;
    http->left -= length;
    http->taken++;
    http->under_way++;
}

/* Receive it. False: it does not come. */
static bool receive(struct iou_lane *lane, struct piece *piece) {
    struct http *http = http_of(lane);
    int error;
    uint64_t got = socket_receive(lane, piece->data, piece->length, true, &error);
    if (got == piece->length)
        return true;
    http->left -= got;
    if (error == -ECANCELED)
        fail_outside(http, ECANCELED);
    else
        fail(http, IOU_HTTP_TRUNCATED, NULL);
    if (error && error != -ECANCELED)
        socket_break(lane, -error);
    return false;
}

static void write_piece(struct lane_thread *thread, struct piece *piece) {
    if (http_of(thread->lane)->failed)
        op_unclaim(&piece->op);
    else
        run(thread, &piece->op);
}

/* Wait until all before it was sent. False: the request has failed. */
static bool await_order(struct http *http, const struct piece *piece) {
    pthread_mutex_lock(&http->lock);
    while (http->sent != piece->number && !http->failed)
        pthread_cond_wait(&http->changed, &http->lock);
    bool goes_on = !http->failed;
    http->started = http->started || goes_on;
    pthread_mutex_unlock(&http->lock);
    return goes_on;
}

static void read_piece(struct lane_thread *thread, struct piece *piece) {
    struct http *http = http_of(thread->lane);
    if (!run(thread, &piece->op) || !await_order(http, piece))
        return;
    http_answer_data(thread->lane, piece->data, piece->length, piece->number == 0);
    pthread_mutex_lock(&http->lock);
    http->sent++;
    pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock);
}

static void end_piece(struct iou_lane *lane, struct piece *piece) {
    struct http *http = http_of(lane);
    memory_put(lane, piece->memory);
    pthread_mutex_lock(&http->lock);
    http->under_way--;
    pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock);
    tell_leader(lane);
}

static void await_pieces(struct http *http) {
    pthread_mutex_lock(&http->lock);
    while (http->under_way)
        pthread_cond_wait(&http->changed, &http->lock);
    pthread_mutex_unlock(&http->lock);
}

static bool serve_piece(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    struct http *http = http_of(lane);
    bool writes = http->request.kind == IOU_WRITE;
    struct piece piece;
    next_piece(http, &piece);
    if (!get_memory(lane, &piece))
        return true;
    if (writes && !receive(lane, &piece)) {
        memory_put(lane, piece.memory);
        return true;
    }
    piece.op.kind = http->request.kind;
    piece.op.offset = piece.offset;
    piece.op.length = piece.length;
    piece.op.buffer = piece.data;
    operation_begin(lane, &piece.op);
    advance(http, piece.length);
    bool leads = piece.last || !turn_hand_over(thread);
    if (leads)
        turn_begin(thread);
    (writes ? write_piece : read_piece)(thread, &piece);
    end_piece(lane, &piece);
    if (piece.last) {
        await_pieces(http);
        finish(thread);
    }
    return leads && turn_end(thread);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static bool serve_alone(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    const struct http_request *request = &http_of(lane)->request;
    struct op op = {
        .kind = request->kind,
        .flags = (lane->flags & IOU_LANE_SPARSE ? 0 : IOU_ALLOCATE) | (request->fast ? IOU_FAST_ONLY : 0),
        .offset = request->offset,
        .length = request->length,
    };
    if (op.kind == IOU_FLUSH)
        op.flags = 0;
    operation_begin(lane, &op);
    turn_begin(thread);
    run(thread, &op);
    finish(thread);
    return turn_end(thread);
}

bool http_serve(struct lane_thread *thread) {
    return http_of(thread->lane)->left ? serve_piece(thread) : serve_alone(thread);
}
