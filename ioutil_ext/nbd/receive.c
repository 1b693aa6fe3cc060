/* SPDX-License-Identifier: Apache-2.0 */

/* Receiving requests: a header, then a payload. */

#include <errno.h>

#include "nbd/nbd.h"

/* Payloads of at least this length are received without a copy: after one, only a header goes to the staging, because
   another long payload is likely to follow. */
#define LONG_PAYLOAD (64 * KIB)

static struct incoming *incoming_of(const struct iou_lane *lane) {
    return &nbd_of(lane)->incoming;
}

/* ---- parts ------------------------------------------------------------------------------------------------------ */

/* Stage the next header. NULL: there is none, and the connection ends. The rest of a header that has begun must arrive
   within the timeout. */
static const char *stage_header(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    uint32_t size = nbd_of(lane)->dialect.header_size, left;
    while ((left = staged(&lane->staging)) < size) {
        int ms = left ? lane->timeout_ms : -1;
        ssize_t count = socket_stage(lane, incoming->after_long ? size : LANE_STAGING, ms);
        if (count < 0)
            incoming->error = (int)-count;
        if (count <= 0)
            return NULL;
    }
    return staged_bytes(&lane->staging);
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
    const char *header = stage_header(lane);
    if (!header || lane->state.leaving) /* iou_lane_leave() was called while the header arrived */
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

static uint64_t most_of_payload(const struct body *body) {
    return MEMORY_PIECE - body->next % PAGE_UNIT;
}

/* Take a piece that was received. Returns whether it is the last one. */
static bool take_payload_piece(struct incoming *incoming) {
    struct body *body = &incoming->body;
    struct payload *payload = &incoming->payload;
    payload->memory = body_take_memory(body);
    payload->data = place_in(payload->memory, body->next);
    payload->offset = body->next;
    payload->length = body->length;
    body_advance(body);
    return body->left == 0;
}

static void write_out(struct task *task, struct payload *payload) {
    write_piece(task, payload, incoming_of(task->lane)->request.flags & FLAG_FUA);
    lane_put_memory(task->lane, payload->memory);
    payload->memory = NULL;
}

/* Receive the next piece, within the limit on the rate. */
static int receive_piece(struct iou_lane *lane) {
    struct body *body = &incoming_of(lane)->body;
    uint64_t most = min_u64(body->left, most_of_payload(body));
    int error = lane_take_rate(lane, most);
    if (!error && (error = body_receive(lane, body, most)) == 0)
        lane_give_back_rate(lane, most - body->length);
    return error;
}

/* Receive all pieces, and write all but the last one. */
static bool receive_pieces(struct task *task) {
    struct iou_lane *lane = task->lane;
    struct incoming *incoming = incoming_of(lane);
    int error;
    while (!(error = receive_piece(lane))) {
        if (take_payload_piece(incoming))
            return true;
        write_out(task, &incoming->payload);
    }
    if (error == -ENOMEM || error == -ECANCELED) {
        incoming->payload.answer = answer_no_memory(lane, error);
        return drop_payload(lane);
    }
    incoming->error = error == -ENODATA ? 0 : -error;
    return false;
}

static bool receive_payload(struct task *task) {
    struct iou_lane *lane = task->lane;
    struct incoming *incoming = incoming_of(lane);
    const struct request *request = &incoming->request;
    incoming->after_long = request->payload >= LONG_PAYLOAD;
    if (request->payload == 0)
        return true;
    if (request->error && request->payload > MAX_DRAINED) {
        lane->state.leaving = true; /* so that no task reads the payload as requests */
        return true;
    }
    return request->error || request->command != CMD_WRITE ? drop_payload(lane) : receive_pieces(task);
}

/* Receive the payload of a request whose header has arrived. The task works for it from here on. */
static bool receive_begun(struct task *task) {
    const struct request *request = &incoming_of(task->lane)->request;
    iou_record what = nbd_describe(request);
    work_begin(task->work, request->began, &what);
    return receive_payload(task);
}

bool receive_request(struct task *task, struct request *request, struct payload *payload) {
    struct iou_lane *lane = task->lane;
    struct incoming *incoming = incoming_of(lane);
    if (!incoming->error && !lane->state.leaving && (receive_header(lane)) && receive_begun(task)) {
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

void receive_end(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    body_drop_memory(lane, &incoming->body);
    incoming->begun = false;
}
