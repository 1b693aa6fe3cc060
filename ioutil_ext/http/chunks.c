/* SPDX-License-Identifier: Apache-2.0 */

/* Bodies in chunks (RFC 9112 7.1): their end, for bytes that are passed on unchanged, and their data, for lanes. */

#include <string.h>

#include "base/numbers.h"
#include "http/head.h"

/* Most digits of a size, which is below 2^63 then. */
#define MAX_DIGITS 15

enum part { SIZE, END, TRAILER };

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool take_size(struct http_text *line, uint64_t *size) {
    const char *start = line->at;
    *size = 0;
    for (; line->at < line->end && hex_digit(*line->at) >= 0; line->at++) {
        if (line->at - start == MAX_DIGITS)
            return false;
        *size = *size * 16 + (uint64_t)hex_digit(*line->at);
    }
    return line->at > start;
}

/* Whether the line is any number of `;name` or `;name=value`. A value in quotes is refused: no program sends one. */
static bool are_extensions(struct http_text line) {
    bool is_valid = true;
    while (line.at < line.end && is_valid) {
        is_valid = http_skip(&line, ";") && http_token(&line);
        if (is_valid && http_skip(&line, "="))
            is_valid = http_token(&line);
    }
    return is_valid;
}

static int read_size(iou_chunks *chunks, struct http_text line) {
    if (!take_size(&line, &chunks->left) || !are_extensions(line))
        return IOU_CHUNKS_SIZE;
    chunks->part = chunks->left ? END : TRAILER;
    return 0;
}

static int read_end(iou_chunks *chunks, struct http_text line) {
    chunks->part = SIZE;
    return line.at < line.end ? IOU_CHUNKS_END : 0;
}

static int read_trailer(iou_chunks *chunks, struct http_text line) {
    chunks->trailer += (uint32_t)(line.end - line.at);
    chunks->ended = line.at == line.end;
    if (chunks->trailer > IOU_CHUNKS_MAX_TRAILER)
        return IOU_CHUNKS_TRAILER;
    return chunks->ended || http_is_field(line) ? 0 : IOU_CHUNKS_FIELD;
}

/* Read the line in chunks->text, which is complete. */
static int read_line(iou_chunks *chunks) {
    struct http_text line = {chunks->text, chunks->text + chunks->line};
    chunks->line = 0;
    if (line.end - line.at < 2 || line.end[-2] != '\r')
        return IOU_CHUNKS_LINE_END;
    line.end -= 2;
    if (chunks->part == SIZE)
        return read_size(chunks, line);
    return chunks->part == END ? read_end(chunks, line) : read_trailer(chunks, line);
}

/* Append data to the line in chunks->text, and read the line when it is complete. */
static int take_chunk_line(iou_chunks *chunks, struct http_text *data) {
    const char *end = memchr(data->at, '\n', (size_t)(data->end - data->at));
    size_t length = (size_t)((end ? end + 1 : data->end) - data->at);
    if (chunks->line > IOU_CHUNKS_MAX_LINE || length > IOU_CHUNKS_MAX_LINE - chunks->line)
        return IOU_CHUNKS_LINE;
    memcpy(chunks->text + chunks->line, data->at, length);
    chunks->line += (uint32_t)length;
    data->at += length;
    return end ? read_line(chunks) : 0;
}

/* Move past a part of the body. to: where its data goes, which is not behind the text; NULL: nowhere. Returns how many
   bytes of data it has, or a negated refusal. */
static int64_t take_chunk(iou_chunks *chunks, struct http_text *text, char *to) {
    uint64_t made = 0;
    while (text->at < text->end && !chunks->ended) {
        uint64_t count = min_u64(chunks->left, (uint64_t)(text->end - text->at));
        if (to && to + made != text->at)
            memmove(to + made, text->at, count);
        made += count;
        chunks->left -= count;
        text->at += count;
        int refusal = count ? 0 : take_chunk_line(chunks, text);
        if (refusal)
            return -refusal;
    }
    return (int64_t)made;
}

int64_t iou_chunks_read(iou_chunks *chunks, const void *data, uint64_t length) {
    const char *start = data;
    struct http_text text = {start, start + length};
    int64_t made = take_chunk(chunks, &text, NULL);
    return made < 0 ? made : text.at - start;
}

int64_t iou_chunks_unframe(iou_chunks *chunks, void *data, uint64_t length, uint64_t *taken) {
    char *start = data;
    struct http_text text = {start, start + length};
    int64_t made = take_chunk(chunks, &text, start);
    *taken = (uint64_t)(text.at - start);
    return made;
}
