/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Plain requests, and heads for Python. Plain is the form that programs send, with exact words, each field that matters
 * once, and numbers of at most 18 digits, but for the end of a range. A request in another form is not refused: Python
 * serves it.
 */

#include <string.h>

#include "http/plain.h"

/* ---- heads of plain requests ------------------------------------------------------------------------------------ */

/* The fields of enum http_field that a plain request may have. Python serves requests with others of them. */
#define PLAIN_FIELDS                                                                                                   \
    (1u << HTTP_CONTENT_LENGTH | 1u << HTTP_CONTENT_RANGE | 1u << HTTP_RANGE | 1u << HTTP_HOST |                       \
     1u << HTTP_CONNECTION | 1u << HTTP_EXPECT | 1u << HTTP_ORIGIN | 1u << HTTP_ACCEPT | 1u << HTTP_CONTENT_ENCODING)

#define IMAGES "/images/"

static bool is_end(struct http_text text) {
    return text.at == text.end;
}

static bool is(struct http_text text, const char *expected) {
    return http_skip(&text, expected) && is_end(text);
}

static bool read_method(struct http_text text, enum http_method *method) {
    static const char *const NAMES[] = {[HTTP_GET] = "GET", [HTTP_PUT] = "PUT", [HTTP_PATCH] = "PATCH"};
    for (*method = HTTP_GET; *method <= HTTP_PATCH; ++*method)
        if (is(text, NAMES[*method]))
            return true;
    return false;
}

static bool read_target(struct http_text target, struct http_plain *plain) {
    const char *mark = memchr(target.at, '?', (size_t)(target.end - target.at));
    struct http_text query = {mark ? mark : target.end, target.end};
    plain->path = (struct http_text){target.at, query.at};
    plain->flush = is_end(query) || is(query, "?flush=y");
    if (!plain->flush && !is(query, "?flush=n"))
        return false;
    struct http_text name = plain->path;
    return (is_end(query) || plain->method == HTTP_PUT) && http_skip(&name, IMAGES) && http_is_name(name);
}

/* Read the last byte of a range, and move past it: a number of any length (RFC 9110 14.1.2). A number that is too large
   becomes INT64_MAX, which is past the end of every image. False: there is none. */
static bool read_last(struct http_text *text, uint64_t *last) {
    const char *start = text->at;
    *last = 0;
    for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
        uint64_t digit = (uint64_t)(*text->at - '0');
        *last = *last > (INT64_MAX - digit) / 10 ? INT64_MAX : *last * 10 + digit;
    }
    return text->at > start;
}

/* Read a Range field: one range, from its first byte to its last one, or to the end of the image (RFC 9110 14.2). */
static bool read_range(struct http_text value, struct http_plain *plain) {
    if (!http_skip(&value, "bytes=") || !http_number(&value, &plain->first) || !http_skip(&value, "-"))
        return false;
    plain->part = is_end(value) ? HTTP_REST : HTTP_SPAN;
    return is_end(value) || (read_last(&value, &plain->last) && is_end(value) && plain->first <= plain->last);
}

static bool number_or_star(struct http_text *text, uint64_t *number, bool *star) {
    *star = http_skip(text, "*");
    return *star || http_number(text, number);
}

/* Read a Content-Range field as parse_content_range() in Python does. The last byte and the total must be consistent,
   but are not used, unless the body is encoded: then they give the length of its content. */
static bool read_content_range(struct http_text value, struct http_plain *plain) {
    uint64_t total = 0;
    bool no_last, no_total;
    if (!http_skip(&value, "bytes ") || !http_number(&value, &plain->first) || !http_skip(&value, "-") ||
        !number_or_star(&value, &plain->last, &no_last) || !http_skip(&value, "/") ||
        !number_or_star(&value, &total, &no_total) || !is_end(value))
        return false;
    if (no_last)
        return !plain->encoded;
    return plain->first <= plain->last && (no_total || plain->last < total);
}

/* Whether method, fields and body are consistent. */
static bool is_plain_sound(const struct http_head *head, const struct http_plain *plain) {
    bool range = http_has(head, HTTP_RANGE), content_range = http_has(head, HTTP_CONTENT_RANGE);
    if (plain->method == HTTP_PUT)
        return !range && plain->length > 0 && (content_range || !plain->encoded);
    if (content_range || plain->expects || plain->encoded)
        return false;
    if (plain->method == HTTP_GET)
        return plain->length == 0;
    return !range && plain->length > 0 && plain->length <= HTTP_MAX_PATCH;
}

bool http_read_plain(const struct http_head *head, struct http_plain *plain) {
    *plain = (struct http_plain){
        .expects = http_has(head, HTTP_EXPECT),
        .encoded = http_has(head, HTTP_CONTENT_ENCODING),
        .asks = head->asks,
        .size = head->size,
        .length = head->length,
    };
    if (plain->expects && !http_is_word(head->values[HTTP_EXPECT], "100-continue"))
        return false;
    if (plain->encoded && !http_is_word(head->values[HTTP_CONTENT_ENCODING], "zstd"))
        return false;
    if (head->minor != 1 || head->seen & ~PLAIN_FIELDS || head->options & ~(unsigned)HTTP_KEEP_ALIVE)
        return false;
    if (!read_method(head->method, &plain->method) || !read_target(head->target, plain) || !is_plain_sound(head, plain))
        return false;
    if (http_has(head, HTTP_RANGE))
        return read_range(head->values[HTTP_RANGE], plain);
    return !http_has(head, HTTP_CONTENT_RANGE) || read_content_range(head->values[HTTP_CONTENT_RANGE], plain);
}

static bool is_same(struct http_text a, struct http_text b) {
    return a.end - a.at == b.end - b.at && memcmp(a.at, b.at, (size_t)(a.end - a.at)) == 0;
}

enum http_found http_find_plain(struct http_text data, struct http_text target, struct http_plain *plain) {
    struct http_head head;
    iou_head_result result = http_read_head(data, 0, &head);
    if (result == IOU_HEAD_MORE && data.end - data.at < (ptrdiff_t)HTTP_MAX_HEAD)
        return HTTP_MORE;
    bool is_plain = result == IOU_HEAD_WHOLE && head.size <= HTTP_MAX_HEAD && http_read_plain(&head, plain);
    return is_plain && is_same(plain->path, target) ? HTTP_WHOLE : HTTP_OTHER;
}

/* ---- heads for Python: the length of a message, and whether another one may follow ------------------------------ */

/*
 * Whether another request may follow. A chunked message, or one with Upgrade, is the last one of its connection: if a
 * proxy finds another end of the message, it finds no request behind it.
 */
static bool keeps_alive(const struct http_head *head) {
    if (head->chunked || http_has(head, HTTP_UPGRADE) || head->options & HTTP_CLOSE)
        return false;
    return head->minor == 1 || head->options & HTTP_KEEP_ALIVE;
}

int iou_head_read(const void *data, uint64_t length, uint64_t searched, iou_head *said) {
    struct http_head head;
    struct http_plain plain;
    const char *text = data;
    iou_head_result result = http_read_head((struct http_text){text, text + length}, searched, &head);
    *said = (iou_head){.field = head.twice};
    if (result != IOU_HEAD_WHOLE)
        return (int)result;
    said->size = head.size;
    said->method_length = (uint32_t)(head.method.end - head.method.at);
    said->target_length = (uint32_t)(head.target.end - head.target.at);
    said->minor = head.minor;
    said->asks = head.asks;
    said->length = head.length;
    said->flags = (head.chunked ? IOU_HEAD_CHUNKED : 0u) | (keeps_alive(&head) ? IOU_HEAD_KEEP_ALIVE : 0u) |
                  (http_read_plain(&head, &plain) ? IOU_HEAD_PLAIN : 0u);
    return IOU_HEAD_WHOLE;
}

/* ---- the JSON of a PATCH ---------------------------------------------------------------------------------------- */

/*
 * The JSON of a PATCH, in the form that programs write: one object of known keys, each once, with plain numbers. Python
 * reads JSON in other forms.
 */

enum { OP, OFFSET, SIZE, FLUSH, FAST, KEYS };

static void skip_space(struct http_text *text) {
    while (text->at < text->end && memchr(" \t\r\n", *text->at, 4))
        text->at++;
}

/* Move past a token and the white space around it. */
static bool skip_token(struct http_text *text, const char *token) {
    skip_space(text);
    bool found = http_skip(text, token);
    skip_space(text);
    return found;
}

/* Read a number. JSON has no leading zeros (RFC 8259 6). A fraction or an exponent fails as the next token. */
static bool take_number(struct http_text *text, uint64_t *number) {
    const char *start = text->at;
    return http_number(text, number) && (*start != '0' || text->at == start + 1);
}

static bool take_switch(struct http_text *text, bool *value) {
    *value = http_skip(text, "true");
    return *value || http_skip(text, "false");
}

static bool take_op(struct http_text *text, bool *is_flush) {
    *is_flush = http_skip(text, "\"flush\"");
    return *is_flush || http_skip(text, "\"zero\"");
}

static int take_key(struct http_text *text) {
    static const char *const NAMES[KEYS] = {"\"op\"", "\"offset\"", "\"size\"", "\"flush\"", "\"fast\""};
    int key = 0;
    skip_space(text);
    while (key < KEYS && !http_skip(text, NAMES[key]))
        key++;
    return key;
}

static bool take_value(struct http_text *text, int key, struct http_patch *patch) {
    switch (key) {
    case OP:
        return take_op(text, &patch->is_flush);
    case OFFSET:
        return take_number(text, &patch->offset);
    case SIZE:
        return take_number(text, &patch->size);
    case FLUSH:
        return take_switch(text, &patch->flush);
    case FAST:
        return take_switch(text, &patch->fast);
    default:
        return false;
    }
}

bool http_parse_patch(struct http_text body, struct http_patch *patch) {
    unsigned seen = 0;
    *patch = (struct http_patch){0};
    if (!skip_token(&body, "{"))
        return false;
    do {
        int key = take_key(&body);
        if (seen & 1u << key || !skip_token(&body, ":") || !take_value(&body, key, patch))
            return false;
        seen |= 1u << key;
    } while (skip_token(&body, ","));
    if (!skip_token(&body, "}") || body.at != body.end)
        return false;
    return patch->is_flush ? seen == 1u << OP : seen & 1u << OP && seen & 1u << SIZE;
}
