/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A body that is one frame of zstd. It is decoded from the staging into the memory of a part, by the leader. As with
 * other bodies, a client that does not send holds no memory of parts. The memory of the decoder is separate
 * (content/windows.c), and is held until the frame ends. If the decoder waits for the client while others need its
 * memory, the request ends (-ENOBUFS).
 *
 * One thing differs: the last bytes of the content are written only after the end of the frame, so that an invalid
 * frame never gets an answer of success. If the end does not arrive within a moment, these bytes are kept in a page,
 * the tail, and the bytes before them are written.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/body.h"
#include "lane/lane.h"

void body_begin_encoded(struct body *body, uint64_t encoded) {
    body->is_encoded = true;
    body->encoded = encoded;
    body->decoder = NULL;
    body->tail = NULL;
    body->refusal = 0;
}

void body_end_encoded(struct body *body) {
    if (!body->is_encoded)
        return;
    iou_zstd_free(body->decoder);
    free(body->tail);
    body->decoder = NULL;
    body->tail = NULL;
}

static int refuse_body(struct body *body, iou_zstd_refusal refusal) {
    body->refusal = refusal;
    return -EBADMSG;
}

/* Return how many bytes of the body are staged. */
static uint64_t encoded_staged(const struct iou_lane *lane, const struct body *body) {
    return min_u64(body->encoded, staged(&lane->staging));
}

static void take_encoded(struct iou_lane *lane, struct body *body, uint64_t count) {
    lane->staging.start += (uint32_t)count;
    body->encoded -= count;
}

/* Receive further bytes within `ms`. -EAGAIN: none have arrived; -ENOBUFS: another decoder needs the memory. */
static int stage_encoded(struct iou_lane *lane, struct body *body, int ms) {
    uint64_t since = work_wait(IOU_WAIT_PEER);
    iou_zstd_rest(body->decoder);
    ssize_t count = body_stage(lane, body, ms);
    iou_zstd_go_on(body->decoder);
    work_go_on(IOU_WAIT_PEER, since);
    if (count == 0 || (count < 0 && count != -ETIMEDOUT && count != -EAGAIN))
        return count ? (int)count : -ENODATA;
    if (iou_zstd_is_wanted(body->decoder)) /* also if bytes have arrived: the other decoder waits */
        return -ENOBUFS;
    return count > 0 ? 0 : -EAGAIN;
}

/* Whether fewer than `least` bytes are staged although more are left. For a body in chunks, the number left drops when
   its end arrives. */
static bool lacks_encoded(const struct iou_lane *lane, const struct body *body, uint64_t least) {
    return encoded_staged(lane, body) < min_u64(least, body->encoded);
}

/* Wait until `least` bytes are staged, or all that are left. No content was made from `since` on: bytes without content
   are no progress. */
static int gather_frame(struct iou_lane *lane, struct body *body, uint64_t least, uint64_t since) {
    while (lacks_encoded(lane, body, least)) {
        int error = stage_encoded(lane, body, (int)LANE_MOMENT_MS);
        if (error && error != -EAGAIN)
            return error;
        if (lacks_encoded(lane, body, least) && socket_is_too_slow(lane, since, 0))
            return -ETIMEDOUT;
    }
    return 0;
}

/*
 * Do the same for a part, which needs one byte, or, of a slow body, as many as the staging holds. After the timeout,
 * staged bytes are decoded first, because only that shows whether they make content.
 */
static int gather_for_part(struct iou_lane *lane, struct body *body, uint64_t since) {
    uint64_t began = now_ns();
    int error = gather_frame(lane, body, body->slow ? LANE_STAGING : 1, since);
    body->slow = body->slow && now_ns() - began >= LANE_MOMENT_NS;
    return error == -ETIMEDOUT && encoded_staged(lane, body) ? 0 : error;
}

/* Get the memory for the decoder. Adds the wait to *since, because the client did not cause it. */
static int get_window(struct iou_lane *lane, struct body *body, uint64_t *since) {
    uint64_t asked = now_ns();
    int error = lane_get_window(lane, body->decoder);
    *since += now_ns() - asked;
    return error;
}

/* Get the memory for a part. *since: as above. */
static int get_part_memory(struct iou_lane *lane, struct body *body, uint64_t most, uint64_t *since) {
    uint64_t asked = now_ns();
    int error = body_get_memory(lane, body, min_u64(body->left, most), MEMORY_WAIT);
    *since += now_ns() - asked;
    return error;
}

/* Read the head of the frame, and get the memory that it needs. */
static int begin_frame(struct iou_lane *lane, struct body *body, uint64_t *since) {
    uint64_t memory = 0;
    if (body->decoder)
        return 0;
    int error = iou_zstd_new(body->left, &body->decoder);
    while (!error && !memory) {
        if (!body->encoded)
            return refuse_body(body, IOU_ZSTD_CUT);
        error = gather_frame(lane, body, 1, *since);
        const char *data = staged_bytes(&lane->staging);
        int64_t count = error ? 0 : iou_zstd_head(body->decoder, data, encoded_staged(lane, body), &memory);
        if (count < 0)
            return refuse_body(body, (iou_zstd_refusal)-count);
        take_encoded(lane, body, (uint64_t)count);
    }
    return error ? error : get_window(lane, body, since);
}

/* Whether the body may have ended, but the last chunk has not arrived. */
static bool awaits_last_chunk(const struct iou_lane *lane, const struct body *body) {
    return body->is_chunked && !body->chunks.ended && !encoded_staged(lane, body);
}

/* Decode staged bytes into `room` bytes of memory. */
static int decode(struct iou_lane *lane, struct body *body, char *place, uint64_t room, iou_zstd_step *step) {
    const char *data = staged_bytes(&lane->staging);
    int error = iou_zstd_decode(body->decoder, data, encoded_staged(lane, body), place, room, step);
    take_encoded(lane, body, step->taken);
    body->refusal = step->refusal;
    return error;
}

/* Decode into the part. *goes_on: the memory was filled, so there may be more of it without further bytes. */
static int decode_staged(struct iou_lane *lane, struct body *body, bool *goes_on, bool *ended) {
    uint64_t room = body->length - body->got;
    iou_zstd_step step;
    int error = decode(lane, body, body_place(body, body->got), room, &step);
    body->got += step.made;
    *goes_on = room && step.made == room;
    *ended = step.ended && !awaits_last_chunk(lane, body);
    return error;
}

/* Decode until the part is complete. -EAGAIN: its bytes pause. */
static int fill_part(struct iou_lane *lane, struct body *body) {
    uint64_t deadline = body->slow ? 0 : now_ns() + LANE_MOMENT_NS;
    bool goes_on, ended;
    for (;;) {
        int error = decode_staged(lane, body, &goes_on, &ended);
        if (!error && ended && body->encoded)
            error = refuse_body(body, IOU_ZSTD_TRAILING);
        if (error || ended || (body->got == body->length && body->length < body->left))
            return error;
        if (encoded_staged(lane, body) || goes_on)
            continue;
        if (!body->encoded)
            return refuse_body(body, IOU_ZSTD_CUT);
        if ((error = stage_encoded(lane, body, ms_until(deadline))))
            return error;
    }
}

/* Keep the last bytes of the content as the tail: those from the last page boundary before the end on. */
static int keep_tail(struct body *body) {
    uint64_t end = max_u64(round_down(body->next + body->got - 1, PAGE_UNIT), body->next), start = end - body->next;
    body->tail = malloc(PAGE_UNIT);
    if (!body->tail)
        return -ENOMEM;
    memcpy(body->tail, body_place(body, start), body->got - start);
    body->got = start;
    return 0;
}

/* Wait for the end of the frame without memory. Then the tail is the last part. */
static int receive_frame_end(struct iou_lane *lane, struct body *body, uint64_t *since) {
    iou_zstd_step step = {0};
    int error = 0;
    while (!error && (!step.ended || awaits_last_chunk(lane, body))) {
        if (!body->encoded)
            return refuse_body(body, IOU_ZSTD_CUT);
        if ((error = gather_frame(lane, body, 1, *since)))
            return error;
        error = decode(lane, body, NULL, 0, &step);
    }
    if (!error && body->encoded)
        error = refuse_body(body, IOU_ZSTD_TRAILING);
    if (!error)
        error = get_part_memory(lane, body, body->left, since);
    if (error)
        return error;
    memcpy(body_place(body, 0), body->tail, body->left);
    body->got = body->left;
    return 0;
}

/* Receive a part. It may be empty: -EAGAIN. */
static int receive_encoded(struct iou_lane *lane, struct body *body, uint64_t most, uint64_t *since) {
    int error = gather_for_part(lane, body, *since);
    if (!error)
        error = get_part_memory(lane, body, most, since);
    if (!error)
        error = fill_part(lane, body);
    if (error != -EAGAIN)
        return error;
    body->slow = true;
    if (body->got == body->left && (error = keep_tail(body)) != 0)
        return error;
    if (!body->got)
        body_drop_memory(lane, body);
    body->length = body->got;
    return body->got ? 0 : socket_is_too_slow(lane, *since, 0) ? -ETIMEDOUT : -EAGAIN;
}

int body_receive_encoded(struct iou_lane *lane, struct body *body, uint64_t most) {
    uint64_t since = now_ns();
    int error = body_unframe(lane, body);
    if (!error)
        error = begin_frame(lane, body, &since);
    if (!error)
        do
            error = body->tail ? receive_frame_end(lane, body, &since) : receive_encoded(lane, body, most, &since);
        while (error == -EAGAIN);
    if (error)
        body_drop_memory(lane, body);
    if (error || body->length == body->left)
        body_end_encoded(body);
    return error;
}
