/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Doing requests, one after the other. The leader itself does zeros, flushes and requests of one piece. One leader
 * after the other takes the pieces of a longer body: while one task writes, the next one receives; while one sends, the
 * next one reads.
 */

#include <errno.h>

#include "engine/running.h"
#include "http/http.h"

struct piece {
    struct memory *memory;
    uint64_t offset, length;
    uint32_t number;
    bool last;
    struct op op;
};

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

/* Return the most bytes of the next piece. Pieces end at multiples of their size, unless all that is left fits. */
static uint64_t most_of_http_piece(const struct http *http) {
    const struct body *body = &http->body;
    uint64_t most = HTTP_FIRST_PIECE;
    while (most < http->piece && http->moved >= most)
        most = min_u64(4 * most, http->piece);
    if (http->request.kind == IOU_READ && http->pauses)
        most = HTTP_SLOW_PIECE;
    else if (body->left <= most && room_for(body->next, body->left) <= MEMORY_PIECE)
        return body->left;
    return most - body->next % most;
}

/* Take the next piece, and count it. */
static void take_http_piece(struct http *http, struct piece *piece) {
    struct body *body = &http->body;
    *piece = (struct piece){
        .memory = body_take_memory(body),
        .offset = body->next,
        .length = body->length,
        .number = http->taken,
        .last = body->length == body->left,
    };
    body_advance(body);
    http->taken++;
    http->under_way++;
}

/* Get memory for data at offset. False: there is none, and the request has failed. */
static bool get_piece_memory(struct iou_lane *lane, uint64_t offset, uint64_t length, struct memory **memory) {
    int error = lane_get_memory(lane, room_for(offset, length), MEMORY_WAIT, memory);
    if (error)
        http_fail_outside(http_of(lane), -error);
    return !error;
}

static void put_memory(struct iou_lane *lane, struct piece *piece) {
    if (piece->memory)
        lane_put_memory(lane, piece->memory);
    piece->memory = NULL;
}

/* Fail the request because its body does not arrive, or there is no memory for it. */
static void fail_to_receive(struct iou_lane *lane, int error) {
    struct http *http = http_of(lane);
    bool is_peers = error != -ECANCELED && error != -ENOMEM && error != -ENOBUFS;
    bool is_refused = error == -EBADMSG || error == -EILSEQ;
    if (!is_peers)
        http_fail_outside(http, -error);
    else
        http_note_failure(http,
                          error == -EBADMSG  ? IOU_HTTP_ENCODING
                          : error == -EILSEQ ? IOU_HTTP_CHUNKS
                                             : IOU_HTTP_TRUNCATED,
                          NULL);
    if (is_peers && error != -ENODATA && !is_refused)
        lane_break(lane, -error);
}

static int receive_part(struct iou_lane *lane, struct body *body, uint64_t most) {
    return body->is_encoded ? body_receive_encoded(lane, body, most) : body_receive(lane, body, most);
}

/* Receive the next piece. After a slow body, pieces are small again. False: the request ends. */
static bool receive_http_piece(struct iou_lane *lane, struct piece *piece) {
    struct http *http = http_of(lane);
    uint64_t most = min_u64(http->body.left, most_of_http_piece(http));
    int error = lane_take_rate(lane, most);
    if (!error && (error = receive_part(lane, &http->body, most)) == 0)
        lane_give_back_rate(lane, most - http->body.length);
    if (error) {
        fail_to_receive(lane, error);
        return false;
    }
    if (http->request.unbounded && !http_may_write(lane, http->body.next, http->body.length)) {
        http_note_outside(lane, http->body.next, http->body.length);
        body_drop_memory(lane, &http->body);
        return false;
    }
    if (http->request.unbounded)
        http->request.length += http->body.length;
    http->moved = http->body.slow ? 0 : http->moved + http->body.length;
    take_http_piece(http, piece);
    return true;
}

/* Get memory for the next piece of an answer. False: the request ends. */
static bool prepare_piece(struct iou_lane *lane, struct piece *piece) {
    struct http *http = http_of(lane);
    struct body *body = &http->body;
    uint64_t length = min_u64(body->left, most_of_http_piece(http));
    int error = lane_take_rate(lane, length);
    if (error) {
        http_fail_outside(http, -error);
        return false;
    }
    body->length = length;
    if (!get_piece_memory(lane, body->next, body->length, &body->memory))
        return false;
    take_http_piece(http, piece);
    return true;
}

/* Whether the piece is a whole request, so that nothing else of the lane is under way. */
static bool is_only(const struct piece *piece) {
    return piece->last && piece->number == 0;
}

/* Return the operation that reads or writes the piece. */
static struct op op_of_piece(const struct piece *piece, uint32_t kind) {
    return (struct op){
        .kind = kind,
        .offset = piece->offset,
        .length = piece->length,
        .buffer = place_in(piece->memory, piece->offset),
        .alone = is_only(piece),
    };
}

/* Begin the write of a piece: claim its range, before further bytes are received. */
static void begin_write(struct iou_lane *lane, struct piece *piece) {
    piece->op = op_of_piece(piece, IOU_WRITE);
    operation_begin(lane, &piece->op);
}

static void http_write_piece(struct task *task, struct piece *piece) {
    if (http_of(task->lane)->failed)
        op_unclaim(&piece->op);
    else
        http_run(task, &piece->op);
}

/* Wait until all earlier pieces were sent. False: the request has failed, or, with until_pause, the client pauses. */
static bool await_order(struct iou_lane *lane, const struct piece *piece, bool until_pause) {
    struct http *http = http_of(lane);
    uint64_t pause = LANE_PAUSE_MS * UINT64_C(1000000), until = now_ns() + pause, before = lane->socket.sent;
    while (http->sent != piece->number && !http->failed) {
        lane_await(lane, until_pause ? until : FOR_EVER);
        if (!until_pause || now_ns() < until)
            continue;
        if (lane->socket.sent - before < LANE_PAUSE_BYTES)
            break;
        before = lane->socket.sent;
        until = now_ns() + pause;
    }
    bool goes_on = http->sent == piece->number && !http->failed;
    http->started = http->started || goes_on;
    return goes_on;
}

static bool read_data(struct task *task, const struct piece *piece) {
    struct op op = op_of_piece(piece, IOU_READ);
    return http_run(task, &op);
}

/* Read a piece again whose memory was given back. */
static bool read_again(struct task *task, struct piece *piece) {
    return get_piece_memory(task->lane, piece->offset, piece->length, &piece->memory) && read_data(task, piece);
}

/* Read a piece, and wait for its turn. A client that pauses holds no memory: the piece is read again afterwards. */
static bool read_in_turn(struct task *task, struct piece *piece) {
    struct iou_lane *lane = task->lane;
    if (!read_data(task, piece))
        return false;
    if (await_order(lane, piece, true))
        return true;
    put_memory(lane, piece);
    return await_order(lane, piece, false) && read_again(task, piece);
}

/* Note whether the client has paused after so many bytes. */
static void note_pause(struct http *http, bool paused, uint64_t sent) {
    http->moved = paused ? 0 : http->moved + sent;
    if (paused)
        http->pauses = true;
    else if (http->moved >= HTTP_UNPAUSED)
        http->pauses = false;
}

static uint64_t answer(struct iou_lane *lane, const struct piece *piece, bool first) {
    return http_answer_data(lane, place_in(piece->memory, piece->offset), piece->length, first);
}

/* Send a piece that was read. False: after a pause, the rest could not be read again. */
static bool send_http_piece(struct task *task, struct piece *piece) {
    struct iou_lane *lane = task->lane;
    uint64_t sent = answer(lane, piece, piece->number == 0);
    note_pause(http_of(lane), sent < piece->length, sent);
    while (sent < piece->length && !lane->state.broken) {
        piece->offset += sent;
        piece->length -= sent;
        put_memory(lane, piece);
        lane_await_reader(lane);
        if (!read_again(task, piece))
            return false;
        sent = answer(lane, piece, false);
    }
    return true;
}

static void http_read_piece(struct task *task, struct piece *piece) {
    struct http *http = http_of(task->lane);
    if (!read_in_turn(task, piece) || !send_http_piece(task, piece))
        return;
    http->sent++;
    http_changed(task->lane);
}

static void end_piece(struct iou_lane *lane, struct piece *piece) {
    struct http *http = http_of(lane);
    put_memory(lane, piece);
    http->under_way--;
    http_changed(lane);
}

static void await_pieces(struct iou_lane *lane) {
    while (http_of(lane)->under_way)
        lane_await(lane, FOR_EVER);
}

static bool serve_piece(struct task *task) {
    struct iou_lane *lane = task->lane;
    struct http *http = http_of(lane);
    bool writes = http->request.kind == IOU_WRITE;
    struct piece piece;
    if (!(writes ? receive_http_piece : prepare_piece)(lane, &piece))
        return true;
    if (writes && piece.length)
        begin_write(lane, &piece);
    bool leads = !task_hand_over(task);
    if (!writes)
        http_read_piece(task, &piece);
    else if (piece.length) /* the end of a body in chunks may be a piece without bytes */
        http_write_piece(task, &piece);
    end_piece(lane, &piece);
    if (piece.last) {
        await_pieces(lane);
        http_finish(task);
    }
    return leads;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static bool serve_alone(struct task *task) {
    struct iou_lane *lane = task->lane;
    const struct http_request *request = &http_of(lane)->request;
    struct op op = {
        .kind = request->kind,
        .flags = (lane->flags & IOU_LANE_SPARSE ? 0 : IOU_ALLOCATE) | (request->fast ? IOU_FAST_ONLY : 0),
        .offset = request->offset,
        .length = request->length,
        .alone = request->kind == IOU_FLUSH || request->length <= HTTP_PIECE, /* a long zero ends with its client */
    };
    int error = op.kind == IOU_FLUSH ? 0 : lane_take_rate(lane, IOU_BUCKET_SMALL);
    if (error) {
        http_fail_outside(http_of(lane), -error);
        http_fail(lane);
        return false;
    }
    if (op.kind == IOU_FLUSH)
        op.flags = 0;
    operation_begin(lane, &op);
    bool leads = !task_hand_over(task); /* the next leader watches the client */
    http_run(task, &op);
    http_finish(task);
    return leads;
}

/* Serve a GET or a PUT of no bytes. */
static bool serve_nothing(struct task *task) {
    bool leads = !task_hand_over(task);
    http_finish(task);
    return leads;
}

bool http_serve(struct task *task) {
    const struct http *http = http_of(task->lane);
    if (http->body.left)
        return serve_piece(task);
    return http->request.kind == IOU_READ || http->request.kind == IOU_WRITE ? serve_nothing(task) : serve_alone(task);
}
