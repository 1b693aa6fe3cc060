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

/* What is seen of the ticket is right when the answer is there. */
static void end_use(struct iou_lane *lane) {
    lane->active = false;
    lane_renew(lane);
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
    end_use(lane);
    lane->leaving = true;
    leave_request(lane);
}

static void succeed(struct iou_lane *lane) {
    lane->requests++;
    end_use(lane);
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

/* Take the next piece. Only the first one has memory yet. */
static void next_piece(struct http *http, struct piece *piece) {
    uint64_t left = http->left;
    *piece = (struct piece){
        .offset = http->next,
        .length = http_piece_length(http->next, left),
        .number = http->taken,
        .memory = http->first,
    };
    http->first = NULL;
    if (http->request.kind == IOU_READ && http->pauses)
        piece->length = min_u64(piece->length, HTTP_SLOW_PIECE - piece->offset % HTTP_SLOW_PIECE);
    piece->last = piece->length == left;
}

/* False: the request ends. */
static bool get_memory(struct iou_lane *lane, struct piece *piece) {
    struct http *http = http_of(lane);
    if (!piece->memory)
        piece->memory = memory_get(lane, room_for(piece->offset, piece->length), true);
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

static void put_memory(struct iou_lane *lane, struct piece *piece) {
    if (piece->memory)
        memory_put(lane, piece->memory);
    piece->memory = NULL;
}

/* Cut the piece where whole pages end of the bytes that came; what is behind them is received again. */
static void cut(struct iou_lane *lane, struct piece *piece, uint64_t got) {
    uint64_t end = max_u64(round_down(piece->offset + got, PAGE_UNIT), piece->offset);
    uint64_t length = end - piece->offset;
    socket_put_back(lane, piece->data + length, got - length);
    piece->length = length;
    piece->last = false;
}

/* Wait for as much of a slow body as is staged, and make that the piece. False: it does not come. */
static bool gather(struct iou_lane *lane, struct piece *piece, int *error) {
    struct http *http = http_of(lane);
    uint64_t since = now_ns();
    if (!socket_gather(lane, (uint32_t)min_u64(http->left, LANE_STAGING), error)) {
        http->left -= lane->staged_end - lane->staged_start; /* less than was asked for: all of it is of this body */
        lane->staged_start = lane->staged_end;
        return false;
    }
    http->slow = now_ns() - since >= LANE_MOMENT_MS * UINT64_C(1000000);
    uint64_t staged = min_u64(http->left, lane->staged_end - lane->staged_start);
    uint64_t end = staged == http->left ? http->next + staged : round_down(http->next + staged, PAGE_UNIT);
    piece->length = end - piece->offset;
    piece->last = piece->length == http->left;
    return true;
}

/* Fail because the body does not come. False, for the caller. */
static bool fail_to_receive(struct iou_lane *lane, int error) {
    struct http *http = http_of(lane);
    if (error == -ECANCELED)
        fail_outside(http, ECANCELED);
    else
        fail(http, IOU_HTTP_TRUNCATED, NULL);
    if (error && error != -ECANCELED)
        socket_break(lane, -error);
    return false;
}

/*
 * Receive it, or what comes of it in a moment. A client that sends less than can be staged is waited for without
 * memory. False: it does not come.
 */
static bool receive(struct iou_lane *lane, struct piece *piece) {
    struct http *http = http_of(lane);
    int error;
    for (;;) {
        if (http->slow && !gather(lane, piece, &error))
            return fail_to_receive(lane, error);
        if (!get_memory(lane, piece))
            return false;
        uint64_t got = socket_receive(lane, piece->data, piece->length, SOCKET_MOMENT, &error);
        if (got == piece->length)
            return true;
        if (error != -EAGAIN) {
            http->left -= got;
            put_memory(lane, piece);
            return fail_to_receive(lane, error);
        }
        cut(lane, piece, got);
        http->slow = true;
        if (piece->length)
            return true;
        put_memory(lane, piece);
    }
}

/* Claim its range, before anything else is received. */
static void begin_write(struct iou_lane *lane, struct piece *piece) {
    piece->op = (struct op){
        .kind = IOU_WRITE,
        .offset = piece->offset,
        .length = piece->length,
        .buffer = piece->data,
    };
    operation_begin(lane, &piece->op);
}

static void write_piece(struct lane_thread *thread, struct piece *piece) {
    if (http_of(thread->lane)->failed)
        op_unclaim(&piece->op);
    else
        run(thread, &piece->op);
}

/* Wait until all before it was sent. False: the request has failed, or the client pauses, if that is looked for. */
static bool await_order(struct iou_lane *lane, const struct piece *piece, bool until_pause) {
    struct http *http = http_of(lane);
    struct timespec deadline;
    pthread_mutex_lock(&http->lock);
    while (http->sent != piece->number && !http->failed) {
        uint64_t before = lane->sent;
        deadline_in(CLOCK_REALTIME, &deadline, until_pause ? LANE_PAUSE_MS : UINT32_MAX);
        if (pthread_cond_timedwait(&http->changed, &http->lock, &deadline) && before == lane->sent)
            break;
    }
    bool goes_on = http->sent == piece->number && !http->failed;
    http->started = http->started || goes_on;
    pthread_mutex_unlock(&http->lock);
    return goes_on;
}

static bool read_data(struct lane_thread *thread, const struct piece *piece) {
    struct op op = {.kind = IOU_READ, .offset = piece->offset, .length = piece->length, .buffer = piece->data};
    return run(thread, &op);
}

/* A client that pauses has no memory meanwhile: what is sent after that is read again. */
static bool read_in_turn(struct lane_thread *thread, struct piece *piece) {
    struct iou_lane *lane = thread->lane;
    if (!read_data(thread, piece))
        return false;
    if (await_order(lane, piece, true))
        return true;
    put_memory(lane, piece);
    return await_order(lane, piece, false) && get_memory(lane, piece) && read_data(thread, piece);
}

/* Note whether the client has paused while so many bytes were sent. */
static void note_pause(struct http *http, bool paused, uint64_t sent) {
    http->unpaused = paused ? 0 : http->unpaused + sent;
    if (paused)
        http->pauses = true;
    else if (http->unpaused >= HTTP_UNPAUSED)
        http->pauses = false;
}

/* Send what was read. False: the rest could not be read again. */
static bool send_data(struct lane_thread *thread, struct piece *piece) {
    struct iou_lane *lane = thread->lane;
    uint64_t sent = http_answer_data(lane, piece->data, piece->length, piece->number == 0);
    note_pause(http_of(lane), sent < piece->length, sent);
    while (sent < piece->length && !lane->broken) {
        piece->offset += sent;
        piece->length -= sent;
        put_memory(lane, piece);
        socket_await_reader(lane);
        if (!get_memory(lane, piece) || !read_data(thread, piece))
            return false;
        sent = http_answer_data(lane, piece->data, piece->length, false);
    }
    return true;
}

static void read_piece(struct lane_thread *thread, struct piece *piece) {
    struct http *http = http_of(thread->lane);
    if (!read_in_turn(thread, piece) || !send_data(thread, piece))
        return;
    pthread_mutex_lock(&http->lock);
    http->sent++;
    pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock);
}

static void end_piece(struct iou_lane *lane, struct piece *piece) {
    struct http *http = http_of(lane);
    put_memory(lane, piece);
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
    if (!(writes ? receive : get_memory)(lane, &piece))
        return true;
    if (writes)
        begin_write(lane, &piece);
    advance(http, piece.length);
    bool leads = piece.last || !turn_hand_over(thread);
    if (leads)
        turn_begin(thread);
    if (writes)
        write_piece(thread, &piece);
    else
        read_piece(thread, &piece);
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
