/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The body of a request, received in parts. A client that does not send holds no memory. If the bytes of a part pause
 * for LANE_MOMENT_MS, the part ends: it has the bytes that have arrived, cut at the end of a page. The lane then waits
 * for further bytes in the staging, without memory. So a body that stops uses only the staging, which each connection
 * has anyway.
 */

#include <errno.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/body.h"
#include "lane/lane.h"

void body_begin(struct body *body, uint64_t offset, uint64_t length) {
    body->next = offset;
    body->left = length;
    body->length = body->got = 0;
    body->is_encoded = body->is_chunked = false;
}

void body_advance(struct body *body) {
    body->next += body->length;
    body->left -= body->length;
    body->length = body->got = 0;
}

struct memory *body_take_memory(struct body *body) {
    struct memory *memory = body->memory;
    body->memory = NULL;
    return memory;
}

void body_drop_memory(struct iou_lane *lane, struct body *body) {
    if (body->memory)
        lane_put_memory(lane, body_take_memory(body));
}

/* Fill the staging with bytes of a slow body. Returns how long the next part can be; 0: the bytes do not arrive. */
static uint64_t gather_part(struct iou_lane *lane, struct body *body, int *error) {
    uint64_t since = now_ns();
    if (!(body->is_chunked ? body_gather_chunks(lane, body, error)
                           : socket_gather(lane, (uint32_t)min_u64(body->left, LANE_STAGING), error))) {
        body->left -= staged(&lane->staging); /* fewer than requested, so all are of this body */
        lane->staging.start = lane->staging.end;
        return 0;
    }
    body->slow = now_ns() - since >= LANE_MOMENT_NS;
    uint64_t length = min_u64(body->left, staged(&lane->staging));
    return length == body->left ? length : round_down(body->next + length, PAGE_UNIT) - body->next;
}

int body_get_memory(struct iou_lane *lane, struct body *body, uint64_t length, enum memory_patience patience) {
    int error = lane_get_memory(lane, room_for(body->next, length), patience, &body->memory);
    body->length = error ? 0 : length;
    body->got = 0;
    return error;
}

/* Get memory for a part of at most `most` bytes. For a slow body, these are at most the bytes that are staged. */
static int begin_part(struct iou_lane *lane, struct body *body, uint64_t most) {
    int error = 0;
    uint64_t length = min_u64(body->left, most);
    if (body->slow) {
        uint64_t gathered = gather_part(lane, body, &error);
        if (body->left == 0 && !error)
            return 0;
        if (gathered == 0)
            return error ? error : -ENODATA;
        length = min_u64(length, gathered);
    }
    return body_get_memory(lane, body, length, MEMORY_WAIT);
}

/* Receive further bytes of the part. */
static int receive_more(struct iou_lane *lane, struct body *body) {
    int error;
    if (body->is_chunked)
        return body_receive_chunks(lane, body);
    body->got += socket_receive(lane, body_place(body, body->got), body->length - body->got, SOCKET_MOMENT, &error);
    return body->got == body->length ? 0 : error ? error : -ENODATA;
}

/* End the part at the last whole page that has arrived. The bytes after it go back to the staging. */
static void cut_part(struct iou_lane *lane, struct body *body) {
    uint64_t end = max_u64(round_down(body->next + body->got, PAGE_UNIT), body->next), length = end - body->next;
    socket_put_back(lane, body_place(body, length), body->got - length);
    body->length = body->got = length;
    body->slow = true;
}

int body_receive(struct iou_lane *lane, struct body *body, uint64_t most) {
    int error = body_unframe(lane, body);
    if (error)
        return error;
    for (;;) {
        if (!body->memory && body->left)
            error = begin_part(lane, body, most);
        if (!error && body->left == 0) /* the chunks have ended at the end of the previous part */
            return 0;
        if (!error)
            error = receive_more(lane, body);
        if (error == -EAGAIN) {
            cut_part(lane, body);
            error = 0;
        }
        if (body->memory && !error && body->length)
            return 0;
        body->left -= body->got;
        body_drop_memory(lane, body);
        if (error)
            return error;
    }
}
