/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A body in chunks (RFC 9112 7.1). The framing is removed in the staging as soon as bytes have arrived, so that staged
 * bytes are data, as with other bodies. The length of the body is known only when its end has arrived.
 */

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/body.h"
#include "lane/lane.h"

/* The data of a chunk of this length is received directly into the memory of a part. Of shorter chunks, one call
   receives many. */
#define LONG_CHUNK LANE_STAGING

void body_begin_chunked(struct body *body) {
    body->is_chunked = true;
    body->is_unframed = false;
    body->chunks = (iou_chunks){0};
    *body_unread(body) = INT64_MAX - body->next;
}

/* Remove the framing of the staged bytes, except the first `data`, which have none. Bytes behind the end of the body
   stay. */
static int unframe(struct iou_lane *lane, struct body *body, uint32_t data) {
    char *raw = staged_bytes(&lane->staging) + data;
    uint64_t taken, length = staged(&lane->staging) - data;
    int64_t made = iou_chunks_unframe(&body->chunks, raw, length, &taken);
    if (made < 0) {
        body->refusal = (uint32_t)-made;
        return -EILSEQ;
    }
    memmove(raw + made, raw + taken, length - taken);
    lane->staging.end -= (uint32_t)(taken - (uint64_t)made);
    if (body->chunks.ended)
        *body_unread(body) = (body->is_encoded ? 0 : body->got) + data + (uint64_t)made;
    return 0;
}

int body_unframe(struct iou_lane *lane, struct body *body) {
    if (!body->is_chunked || body->is_unframed)
        return 0;
    body->is_unframed = true;
    return unframe(lane, body, 0);
}

ssize_t body_stage(struct iou_lane *lane, struct body *body, int ms) {
    uint32_t data = staged(&lane->staging);
    ssize_t count = socket_stage(lane, LANE_STAGING, ms);
    int error = count > 0 && body->is_chunked ? unframe(lane, body, data) : 0;
    return error ? error : count;
}

void body_drop_staged(struct iou_lane *lane, struct body *body) {
    lane->staging.start += (uint32_t)min_u64(*body_unread(body), staged(&lane->staging));
}

/* Receive further bytes within `ms`. -EAGAIN: none have arrived. */
static int stage_chunked(struct iou_lane *lane, struct body *body, int ms) {
    uint64_t since = work_wait(IOU_WAIT_PEER);
    ssize_t count = body_stage(lane, body, ms);
    work_go_on(IOU_WAIT_PEER, since);
    return count > 0 ? 0 : count == 0 ? -ENODATA : count == -ETIMEDOUT && ms != lane->timeout_ms ? -EAGAIN : (int)count;
}

bool body_gather_chunks(struct iou_lane *lane, struct body *body, int *error) {
    uint64_t since = now_ns(), before = staged(&lane->staging);
    *error = 0;
    while (!*error && !body->chunks.ended && staged(&lane->staging) < LANE_STAGING) {
        *error = stage_chunked(lane, body, lane->timeout_ms);
        if (!*error && !body->chunks.ended && socket_is_too_slow(lane, since, staged(&lane->staging) - before))
            *error = -ETIMEDOUT;
    }
    return !*error;
}

/* Move staged bytes into the part. */
static void take_chunked(struct iou_lane *lane, struct body *body) {
    uint64_t count = min_u64(body->length - body->got, staged(&lane->staging));
    if (body->chunks.ended)
        count = min_u64(count, body->left - body->got);
    memcpy(body_place(body, body->got), staged_bytes(&lane->staging), count);
    lane->staging.start += (uint32_t)count;
    body->got += count;
}

/* Receive data of a long chunk, of which nothing is staged. */
static int receive_data(struct iou_lane *lane, struct body *body) {
    uint64_t length = min_u64(body->chunks.left, body->length - body->got);
    int error;
    uint64_t count = socket_receive(lane, body_place(body, body->got), length, SOCKET_MOMENT, &error);
    body->chunks.left -= count;
    body->got += count;
    return count == length ? 0 : error ? error : -ENODATA;
}

int body_receive_chunks(struct iou_lane *lane, struct body *body) {
    uint64_t deadline = now_ns() + LANE_MOMENT_NS;
    for (;;) {
        take_chunked(lane, body);
        if (body->chunks.ended)
            body->length = min_u64(body->length, body->left);
        if (body->got == body->length)
            return 0;
        int error =
            body->chunks.left >= LONG_CHUNK ? receive_data(lane, body) : stage_chunked(lane, body, ms_until(deadline));
        if (error)
            return error;
    }
}
