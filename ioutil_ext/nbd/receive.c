/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Receiving requests: a header, then a payload. Between the parts of a long write that the leader does itself, it
 * receives bytes of the next request: a socket holds 208 KiB, and a client whose socket is full sleeps.
 */

#include <errno.h>

#include "nbd/nbd.h"

/* Payloads of at least so many bytes are received without a copy: after one, only a header goes to the staging, because
   another long payload is likely to follow. */
#define LONG_PAYLOAD (64 * KIB)

static struct incoming *incoming_of(const struct iou_lane *lane) {
    return &nbd_of(lane)->incoming;
}

/* ---- parts ------------------------------------------------------------------------------------------------------ */

/* Stage the next header. NULL: there is none; with wait, the connection then ends. The rest of a header that has begun
   must come within the timeout. */
static const char *stage_header(struct iou_lane *lane, bool wait) {
    struct incoming *incoming = incoming_of(lane);
    uint32_t size = nbd_of(lane)->dialect.header_size, left;
    while ((left = lane->staging.end - lane->staging.start) < size) {
        int ms = !wait ? 0 : left ? lane->timeout_ms : -1;
        ssize_t count = socket_stage(lane, incoming->after_long ? size : LANE_STAGING, ms);
        if (count < 0 && count != -EAGAIN)
            incoming->error = (int)-count;
        if (count <= 0)
            return NULL;
    }
    return lane->staging.bytes + lane->staging.start;
}

static void take_header(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    lane->staging.start += nbd_of(lane)->dialect.header_size;
    lane->state.running++;
    incoming->payload = (struct payload){0};
    body_begin(&incoming->body, incoming->request.offset, incoming->request.payload);
    incoming->request.began = now_ns();
    incoming->begun = true;
}

/* ---- whole requests --------------------------------------------------------------------------------------------- */

static bool receive_header(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    const char *header = stage_header(lane, true);
    if (!header || lane->state.leaving) /* iou_lane_leave() was called while the header came */
        return false;
    if (wire_parse(&nbd_of(lane)->dialect, header, &incoming->request)) {
        atomic_store(&lane->state.error, EPROTO);
        return false;
    }
    if (incoming->request.command == CMD_DISC && !incoming->request.error)
        return false;
    take_header(lane);
    return true;
}

/* Discard the rest of the payload. */
static bool drop_payload(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    uint64_t left = incoming->body.left;
    int error;
    if (socket_receive(lane, NULL, left, SOCKET_LONG, &error) == left)
        return true;
    incoming->error = -error;
    return false;
}

static uint64_t most_of_piece(const struct body *body) {
    return LANE_PIECE - body->next % PAGE_UNIT;
}

/* Take a piece that was received. Returns whether it is the last one. */
static bool take_piece(struct incoming *incoming) {
    struct body *body = &incoming->body;
    struct payload *payload = &incoming->payload;
    payload->memory = body_take_memory(body);
    payload->data = place_in(payload->memory, body->next);
    payload->offset = body->next;
    payload->length = body->length;
    body_advance(body);
    return body->left == 0;
}

static void write_out(struct lane_thread *thread, struct payload *payload) {
    write_piece(thread, payload, incoming_of(thread->lane)->request.flags & FLAG_FUA);
    memory_put(thread->lane, payload->memory);
    payload->memory = NULL;
}

/* Receive the next piece, within the limit on the rate. */
static int receive_piece(struct iou_lane *lane) {
    struct body *body = &incoming_of(lane)->body;
    uint64_t most = min_u64(body->left, most_of_piece(body));
    if (body->memory) /* received ahead, when there was no limit */
        return body_receive(lane, body, most);
    int error = rate_take(lane, most);
    if (!error && (error = body_receive(lane, body, most)) == 0)
        rate_give_back(lane, most - body->length);
    return error;
}

/* Receive all pieces, and write all but the last one. */
static bool receive_pieces(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    struct incoming *incoming = incoming_of(lane);
    int error;
    while (!(error = receive_piece(lane))) {
        if (take_piece(incoming))
            return true;
        write_out(thread, &incoming->payload);
    }
    if (error == -ENOMEM || error == -ECANCELED) {
        incoming->payload.answer = answer_no_memory(lane, error);
        return drop_payload(lane);
    }
    incoming->error = error == -ENODATA ? 0 : -error;
    return false;
}

static bool receive_payload(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    struct incoming *incoming = incoming_of(lane);
    const struct request *request = &incoming->request;
    if (request->payload == 0)
        return true;
    if (request->error && request->payload > MAX_DRAINED) {
        lane->state.leaving = true; /* so that no thread reads the payload as requests */
        return true;
    }
    incoming->after_long = request->payload >= LONG_PAYLOAD;
    return request->error || request->command != CMD_WRITE ? drop_payload(lane) : receive_pieces(thread);
}

/* Receive the payload of a request whose header has arrived. The thread works for it from here on. */
static bool receive_begun(struct lane_thread *thread) {
    const struct request *request = &incoming_of(thread->lane)->request;
    iou_record what = nbd_describe(request);
    work_begin(thread->work, request->began, &what);
    return receive_payload(thread);
}

bool receive_request(struct lane_thread *thread, struct request *request, struct payload *payload) {
    struct iou_lane *lane = thread->lane;
    struct incoming *incoming = incoming_of(lane);
    if (!incoming->error && !lane->state.leaving && (incoming->begun || receive_header(lane)) &&
        receive_begun(thread)) {
        *request = incoming->request;
        *payload = incoming->payload;
        incoming->begun = false;
        return true;
    }
    if (incoming->error)
        lane_break(lane, incoming->error);
    if (incoming->begun)
        request_end(lane);
    receive_end(lane);
    return false;
}

/* ---- ahead ------------------------------------------------------------------------------------------------------ */

/* Take the header of the next request if it is a WRITE of one piece. All others, invalid ones and the end of the stream
   are left to receive_request(). */
static bool begin_ahead(struct iou_lane *lane) {
    struct request *request = &incoming_of(lane)->request;
    const char *header = stage_header(lane, false);
    if (!header || wire_parse(&nbd_of(lane)->dialect, header, request) || request->error ||
        request->command != CMD_WRITE || request->payload == 0 ||
        room_for(request->offset, request->payload) > LANE_PIECE)
        return false;
    take_header(lane);
    return true;
}

void receive_ahead(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    if (lane->socket.tls) /* receiving may have to send, and would wait for room: receive_tls() */
        return;
    if (rate_piece(lane) != UINT64_MAX) /* the next request waits for the limit, without memory */
        return;
    if (incoming->error || (!incoming->begun && !begin_ahead(lane)))
        return;
    int error = body_receive_ahead(lane, &incoming->body, most_of_piece(&incoming->body));
    if (error && error != -EAGAIN && error != -ENODATA && error != -ENOMEM && error != -ECANCELED)
        incoming->error = -error;
}

void receive_end(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    body_drop_memory(lane, &incoming->body);
    incoming->begun = false;
}
