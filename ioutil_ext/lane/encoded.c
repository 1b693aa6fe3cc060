/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A body that is one frame of zstd. It is decoded from the staging into the memory of a part, by the leader. As with
 * other bodies, a client that does not send holds no memory of parts. The memory for the window of its frame is apart
 * (memory.c), and stays until the frame ends. One thing differs: when all content is here and the end of the frame is
 * not, the part waits for it, so that no frame that turns out to be bad was answered with success.
 */

#include <errno.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/body.h"
#include "lane/lane.h"

#define MOMENT_NS (LANE_MOMENT_MS * UINT64_C(1000000))

void body_begin_encoded(struct body *body, uint64_t encoded) {
    body->is_encoded = true;
    body->encoded = encoded;
    body->decoder = NULL;
    body->window = 0;
    body->refusal = 0;
}

void body_end_encoded(struct iou_lane *lane, struct body *body) {
    if (!body->is_encoded)
        return;
    iou_zstd_free(body->decoder);
    if (body->window)
        memory_put_window(lane, body->window);
    body->decoder = NULL;
    body->window = 0;
}

static int refuse(struct body *body, iou_zstd_refusal refusal) {
    body->refusal = refusal;
    return -EBADMSG;
}

/* Return how many bytes of the body are staged. */
static uint64_t staged(const struct iou_lane *lane, const struct body *body) {
    return min_u64(body->encoded, lane->staging.end - lane->staging.start);
}

static void take(struct iou_lane *lane, struct body *body, uint64_t count) {
    lane->staging.start += (uint32_t)count;
    body->encoded -= count;
}

static const char *data_of(const struct iou_lane *lane) {
    return lane->staging.bytes + lane->staging.start;
}

/* Wait until so many bytes are staged. Since then no content was made: bytes that make none are no progress. */
static int gather(struct iou_lane *lane, struct body *body, uint64_t least, uint64_t since) {
    int error;
    while (staged(lane, body) < least) {
        if (!socket_gather(lane, (uint32_t)staged(lane, body) + 1, &error)) {
            take(lane, body, staged(lane, body)); /* fewer than requested, so all are of this body */
            return error ? error : -ENODATA;
        }
        if (socket_is_too_slow(lane, since, 0))
            return -ETIMEDOUT;
    }
    return 0;
}

/*
 * The same for what a part needs: something, or, of a slow body, as much as the staging holds. What has come is decoded
 * before it is too late: only then it is known whether it makes content.
 */
static int gather_for_part(struct iou_lane *lane, struct body *body, uint64_t since) {
    uint64_t began = now_ns(), most = min_u64(body->encoded, LANE_STAGING);
    int error = gather(lane, body, body->slow ? most : min_u64(most, 1), since);
    body->slow = body->slow && now_ns() - began >= MOMENT_NS;
    return error == -ETIMEDOUT && staged(lane, body) ? 0 : error;
}

/* Get the memory for the window of the frame. *since: later by the wait, which is not the client's. */
static int get_window(struct iou_lane *lane, struct body *body, uint64_t memory, uint64_t *since) {
    uint64_t asked = now_ns();
    int error = memory_get_window(lane, memory);
    *since += now_ns() - asked;
    body->window = error ? 0 : memory;
    return error;
}

/* Get the memory for a part. *since: as above. */
static int get_memory(struct iou_lane *lane, struct body *body, uint64_t most, uint64_t *since) {
    uint64_t asked = now_ns();
    int error = body_get_memory(lane, body, min_u64(body->left, most), MEMORY_WAIT);
    *since += now_ns() - asked;
    return error;
}

/* Read the head of the frame, and get the memory that it needs. */
static int begin(struct iou_lane *lane, struct body *body, uint64_t *since) {
    uint64_t memory = 0;
    int error = body->decoder ? 0 : iou_zstd_new(body->left, &body->decoder);
    while (!error && !body->window && !memory) {
        if (!body->encoded)
            return refuse(body, IOU_ZSTD_CUT);
        error = gather(lane, body, 1, *since);
        int64_t count = error ? 0 : iou_zstd_head(body->decoder, data_of(lane), staged(lane, body), &memory);
        if (count < 0)
            return refuse(body, (iou_zstd_refusal)-count);
        take(lane, body, (uint64_t)count);
    }
    return !error && memory ? get_window(lane, body, memory, since) : error;
}

/* Decode what is staged. *goes_on: the memory was filled, so there may be more of it without further bytes. */
static int decode(struct iou_lane *lane, struct body *body, bool *goes_on, bool *ended) {
    uint64_t room = body->length - body->got;
    char *place = body_place(body, body->got);
    iou_zstd_step step;
    int error = iou_zstd_decode(body->decoder, data_of(lane), staged(lane, body), place, room, &step);
    take(lane, body, step.taken);
    body->got += step.made;
    body->refusal = step.refusal;
    *goes_on = room && step.made == room;
    *ended = step.ended;
    return error;
}

/* Wait for further bytes until the deadline. full: since when all content is here; then until the timeout. */
static int await_more(struct iou_lane *lane, struct body *body, uint64_t deadline, uint64_t full) {
    if (!body->encoded)
        return refuse(body, IOU_ZSTD_CUT);
    if (full)
        return gather(lane, body, 1, full);
    uint64_t now = work_wait(IOU_WAIT_PEER);
    int ms = now < deadline ? (int)((deadline - now) / 1000000) + 1 : 0;
    ssize_t count = socket_stage(lane, LANE_STAGING, ms);
    work_go_on(IOU_WAIT_PEER, now);
    if (count == -ETIMEDOUT)
        return -EAGAIN;
    return count > 0 ? 0 : count ? (int)count : -ENODATA;
}

/* Decode until the part is complete. -EAGAIN: its bytes pause. */
static int fill(struct iou_lane *lane, struct body *body) {
    uint64_t deadline = body->slow ? 0 : now_ns() + MOMENT_NS, full = 0;
    bool goes_on, ended;
    for (;;) {
        int error = decode(lane, body, &goes_on, &ended);
        if (!error && ended && body->encoded)
            error = refuse(body, IOU_ZSTD_TRAILING);
        if (error || ended || (body->got == body->length && body->length < body->left))
            return error;
        if (body->got == body->left && !full)
            full = now_ns();
        if (!staged(lane, body) && !goes_on && (error = await_more(lane, body, deadline, full)))
            return error;
    }
}

/* Receive a part. It may be empty: -EAGAIN. */
static int receive(struct iou_lane *lane, struct body *body, uint64_t most, uint64_t *since) {
    int error = gather_for_part(lane, body, *since);
    if (!error)
        error = get_memory(lane, body, most, since);
    if (!error)
        error = fill(lane, body);
    if (error != -EAGAIN)
        return error;
    body->slow = true;
    if (!body->got)
        body_drop_memory(lane, body);
    body->length = body->got;
    return body->got ? 0 : socket_is_too_slow(lane, *since, 0) ? -ETIMEDOUT : -EAGAIN;
}

int body_receive_encoded(struct iou_lane *lane, struct body *body, uint64_t most) {
    uint64_t since = now_ns();
    int error = begin(lane, body, &since);
    if (!error)
        do
            error = receive(lane, body, most, &since);
        while (error == -EAGAIN);
    if (error)
        body_drop_memory(lane, body);
    if (error || body->length == body->left)
        body_end_encoded(lane, body);
    return error;
}
