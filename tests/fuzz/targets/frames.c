/* SPDX-License-Identifier: Apache-2.0 */

/* Frames of zstd: however one comes, it is decoded to the same content, or refused. It costs what was said before. */

#include "fuzz.h"

#define MOST_CONTENT (MIB + 77)

static char content[MOST_CONTENT], again[MOST_CONTENT];

struct outcome {
    uint64_t made;
    bool ended, refused;
};

/* Take the head, in steps. Returns the bytes taken, -1: refused, -2: it is not whole. */
static int64_t take_head(iou_zstd *decoder, struct input input, size_t step) {
    uint64_t memory = 0;
    const char *start = input.at;
    while (!memory) {
        size_t length = min_u64(step, (uint64_t)(input.end - input.at));
        if (!length)
            return -2;
        int64_t taken = iou_zstd_head(decoder, input.at, length, &memory);
        if (taken < 0)
            return -1;
        CHECK(memory <= IOU_ZSTD_MAX_MEMORY && taken <= (int64_t)length && (memory || taken == (int64_t)length));
        input.at += taken;
    }
    return input.at - start;
}

/* Decode all of it. step: bytes that are given at a time; room: that are made at a time. */
static struct outcome decode(struct input input, uint64_t length, char *where, size_t step, size_t room) {
    struct outcome outcome = {0};
    iou_zstd *decoder;
    iou_zstd_step done = {.left = length};
    CHECK(iou_zstd_new(length, &decoder) == 0);
    int64_t head = take_head(decoder, input, step);
    outcome.refused = head == -1;
    input.at += head > 0 ? head : 0;
    bool goes_on = head > 0;
    CHECK(head <= 0 || iou_zstd_admit(decoder, 1) == 0);
    while (goes_on && !outcome.refused) {
        size_t given = min_u64(step, (uint64_t)(input.end - input.at)), free = min_u64(room, length - outcome.made);
        int error = iou_zstd_decode(decoder, input.at, given, where + outcome.made, free, &done);
        CHECK(error == 0 || (error == -EBADMSG && done.refusal));
        CHECK(done.taken <= given && done.made <= free);
        outcome.refused = error;
        outcome.made += done.made;
        input.at += done.taken;
        CHECK(error || done.left == length - outcome.made);
        CHECK(error || !done.ended || (done.left == 0 && input.at <= input.end));
        goes_on = input.at < input.end || done.made;
    }
    outcome.ended = done.ended && !outcome.refused;
    iou_zstd_free(decoder);
    return outcome;
}

/* Three bytes: how long the content is said to be, and how it comes. */
static void run(const char *data, size_t size) {
    struct input input = {data, data + size};
    uint64_t length = 1 + ((uint64_t)take_byte(&input) << 8 | take_byte(&input)) * 16;
    size_t step = 1 + take_byte(&input);
    struct outcome whole = decode(input, length, content, size + 1, MOST_CONTENT);
    struct outcome pieces = decode(input, length, again, step, 1 + step * 37);
    CHECK(whole.ended == pieces.ended && whole.refused == pieces.refused);
    CHECK(!whole.ended || (whole.made == length && pieces.made == length && memcmp(content, again, length) == 0));
    iou_zstd_totals totals;
    iou_zstd_get_totals(&totals);
    CHECK(totals.memory == 0);
}

const struct target zstd_target = {.name = "zstd", .run = run};
