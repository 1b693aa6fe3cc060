/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Requests as they come: a header, then a payload. While the leader is at a long write itself, it takes what is there
 * of the next one: a socket holds 208 KiB, and a client whose socket is full sleeps.
 */

#include <errno.h>

#include "nbd.h"

/* Payloads from here on are received without a copy: what comes after one is looked at header by header, because
   another one is likely to follow. */
#define LONG_PAYLOAD (64 * KIB)

static struct incoming *incoming_of(const struct iou_lane *lane) {
    return &nbd_of(lane)->incoming;
}

/* ---- parts ------------------------------------------------------------------------------------------------------ */

/* NULL: there is none; if that is not for now only, the connection ends. A header that has begun comes to its end. */
static const char *stage_header(struct iou_lane *lane, bool wait) {
    struct incoming *incoming = incoming_of(lane);
    uint32_t size = nbd_of(lane)->dialect.header_size, left;
    while ((left = lane->staged_end - lane->staged_start) < size) {
        int ms = !wait ? 0 : left ? lane->timeout_ms : -1;
        ssize_t count = socket_stage(lane, incoming->after_long ? size : LANE_STAGING, ms);
        if (count < 0 && count != -EAGAIN)
            incoming->error = (int)-count;
        if (count <= 0)
            return NULL;
    }
    return lane->staging + lane->staged_start;
}

static void take_header(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    lane->staged_start += nbd_of(lane)->dialect.header_size;
    lane->running++;
    incoming->payload = (struct payload){0};
    incoming->got = 0;
    incoming->begun = true;
}

/* Receive more of this piece; returns whether it is whole. */
static bool receive_piece(struct iou_lane *lane, bool wait) {
    struct incoming *incoming = incoming_of(lane);
    struct payload *payload = &incoming->payload;
    char *place = payload->data ? payload->data + incoming->got : NULL;
    int error;
    incoming->got +=
        socket_receive(lane, place, payload->length - incoming->got, wait ? SOCKET_LONG : SOCKET_NOW, &error);
    if (error && error != -EAGAIN)
        incoming->error = -error;
    incoming->after_long = payload->length >= LONG_PAYLOAD;
    return incoming->got == payload->length;
}

/* The next piece of the payload is the one at offset. */
static void place_piece(struct incoming *incoming, uint64_t offset) {
    struct payload *payload = &incoming->payload;
    uint64_t end = incoming->request.offset + incoming->request.payload;
    payload->offset = offset;
    payload->length = min_u64(end - offset, LANE_PIECE - offset % PAGE_UNIT);
    payload->data = place_in(payload->memory, offset);
    incoming->got = 0;
}

/* False: there is none; if it shall wait, none can be had. */
static bool get_memory(struct iou_lane *lane, bool wait) {
    struct incoming *incoming = incoming_of(lane);
    const struct request *request = &incoming->request;
    uint64_t room = min_u64(room_for(request->offset, request->payload), LANE_PIECE);
    incoming->payload.memory = memory_get(lane, room, wait);
    if (incoming->payload.memory)
        place_piece(incoming, request->offset);
    return incoming->payload.memory;
}

/* ---- whole requests --------------------------------------------------------------------------------------------- */

static bool receive_header(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    const char *header = stage_header(lane, true);
    if (!header)
        return false;
    if (wire_parse(&nbd_of(lane)->dialect, header, &incoming->request)) {
        atomic_store(&lane->error, EPROTO);
        return false;
    }
    if (incoming->request.command == CMD_DISC && !incoming->request.error)
        return false;
    take_header(lane);
    return true;
}

static bool drop_payload(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    incoming->payload.length = incoming->request.payload;
    return receive_piece(lane, true);
}

/* All pieces but the last one are written. */
static bool receive_pieces(struct lane_thread *thread) {
    struct incoming *incoming = incoming_of(thread->lane);
    struct payload *payload = &incoming->payload;
    uint64_t end = incoming->request.offset + incoming->request.payload;
    while (receive_piece(thread->lane, true)) {
        if (payload->offset + payload->length == end)
            return true;
        request_write_piece(thread, payload);
        place_piece(incoming, payload->offset + payload->length);
    }
    return false;
}

static bool receive_payload(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    struct incoming *incoming = incoming_of(lane);
    const struct request *request = &incoming->request;
    if (request->payload == 0)
        return true;
    if (request->error && request->payload > MAX_DRAINED) {
        lane->leaving = true; /* before anybody could take it for requests */
        return true;
    }
    if (request->error || request->command != CMD_WRITE)
        return drop_payload(lane);
    if (!incoming->payload.memory && !get_memory(lane, true)) {
        incoming->payload.answer = request_no_memory(lane);
        return drop_payload(lane);
    }
    return receive_pieces(thread);
}

bool receive_request(struct lane_thread *thread, struct request *request, struct payload *payload) {
    struct iou_lane *lane = thread->lane;
    struct incoming *incoming = incoming_of(lane);
    if (!incoming->error && !lane->leaving && (incoming->begun || receive_header(lane)) && receive_payload(thread)) {
        *request = incoming->request;
        *payload = incoming->payload;
        incoming->begun = false;
        return true;
    }
    if (incoming->error)
        socket_break(lane, incoming->error);
    if (incoming->begun)
        request_end(lane);
    receive_end(lane);
    return false;
}

/* ---- ahead ------------------------------------------------------------------------------------------------------ */

/* Anything but a write of one piece waits for its turn, as what is not understood and the end do. */
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
    if (lane->tls) /* it would wait until it can answer a change of keys */
        return;
    if (incoming->error || (!incoming->begun && !begin_ahead(lane)))
        return;
    /* Who has memory does not wait for more. */
    if (incoming->payload.memory || get_memory(lane, false))
        receive_piece(lane, false);
}

void receive_end(struct iou_lane *lane) {
    struct incoming *incoming = incoming_of(lane);
    if (incoming->begun && incoming->payload.memory)
        memory_put(lane, incoming->payload.memory);
    incoming->begun = false;
}
