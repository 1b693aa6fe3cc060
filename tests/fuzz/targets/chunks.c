/* SPDX-License-Identifier: Apache-2.0 */

/* Bodies in chunks: they end at the same byte however they come, and are refused for the same reason. */

#include "fuzz.h"

/* Returns the bytes of the body, or why it is refused. */
static int64_t parse(const char *data, size_t size, size_t step, bool *ended) {
    iou_chunks chunks = {0};
    int64_t taken = 0;
    for (size_t at = 0; at < size && !chunks.ended; at += step) {
        size_t length = min_u64(step, size - at);
        char *copy = malloc(length); /* of exactly this size: a byte beyond it is seen */
        CHECK(copy);
        memcpy(copy, data + at, length);
        int64_t count = iou_chunks_read(&chunks, copy, length);
        free(copy);
        if (count < 0)
            return count;
        CHECK(count == (int64_t)length || (chunks.ended && count < (int64_t)length));
        taken += count;
    }
    *ended = chunks.ended;
    return taken;
}

static void run(const char *data, size_t size) {
    bool ended = false, ended_in_pieces = false;
    int64_t whole = parse(data, size, size + 1, &ended);
    CHECK(!ended || (whole >= 5 && memcmp(data + whole - 2, "\r\n", 2) == 0));
    static const size_t STEPS[] = {1, 2, 7, 255, 257};
    for (size_t i = 0; i < sizeof(STEPS) / sizeof(*STEPS); i++) {
        CHECK(parse(data, size, STEPS[i], &ended_in_pieces) == whole);
        CHECK(whole < 0 || ended == ended_in_pieces);
    }
}

/* States that the parser never leaves behind break nothing. */
static void run_from_any(const char *data, size_t size) {
    iou_chunks chunks;
    if (size < sizeof(chunks))
        return;
    memcpy(&chunks, data, sizeof(chunks));
    iou_chunks_read(&chunks, data + sizeof(chunks), size - sizeof(chunks));
}

static void run_all(const char *data, size_t size) {
    run(data, size);
    run_from_any(data, size);
}

const struct target http_chunks_target = {.name = "http_chunks", .run = run_all};
