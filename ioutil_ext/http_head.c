/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Heads of requests, strictly: nothing is taken that two readers could understand differently, and nothing that the
 * owner of the lane would refuse. What is not taken is not refused: he looks at it again.
 */

#include <string.h>

#include "http.h"

bool http_skip(struct http_text *text, const char *expected) {
    size_t length = strlen(expected);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, expected, length) != 0)
        return false;
    text->at += length;
    return true;
}

bool http_number(struct http_text *text, uint64_t *number) {
    const char *start = text->at;
    *number = 0;
    for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
        if ((size_t)(text->at - start) == HTTP_MAX_DIGITS)
            return false;
        *number = *number * 10 + (uint64_t)(*text->at - '0');
    }
    return text->at > start;
}

static bool is_end(struct http_text text) {
    return text.at == text.end;
}

/* ---- values of fields ------------------------------------------------------------------------------------------- */

static bool is_content_length(struct http_head *head) {
    return http_number(&head->value, &head->length) && is_end(head->value);
}

/* One range with both ends. */
static bool is_range(struct http_head *head) {
    struct http_text *value = &head->value;
    return http_skip(value, "bytes=") && http_number(value, &head->first) && http_skip(value, "-") &&
           http_number(value, &head->last) && is_end(*value) && head->first <= head->last;
}

static bool number_or_star(struct http_text *text, uint64_t *number, bool *star) {
    *star = http_skip(text, "*");
    return *star || http_number(text, number);
}

/* The last byte and the total have to make sense, and say nothing. */
static bool is_content_range(struct http_head *head) {
    struct http_text *value = &head->value;
    uint64_t total = 0;
    bool no_last, no_total;
    if (!http_skip(value, "bytes ") || !http_number(value, &head->first) || !http_skip(value, "-") ||
        !number_or_star(value, &head->last, &no_last) || !http_skip(value, "/") ||
        !number_or_star(value, &total, &no_total) || !is_end(*value))
        return false;
    return no_last || (head->first <= head->last && (no_total || head->last < total));
}

static bool is_keep_alive(struct http_head *head) {
    return http_skip(&head->value, "keep-alive") && is_end(head->value);
}

/* ---- fields ----------------------------------------------------------------------------------------------------- */

/*
 * Those that are looked at, then those that matter, too, and make the request somebody else's. All others have no part
 * in the answer.
 */
enum { CONTENT_LENGTH, CONTENT_RANGE, RANGE, HOST, CONNECTION, LOOKED_AT };

static const struct {
    const char *name;
    bool (*is_valid)(struct http_head *head);
} FIELDS[] = {
    [CONTENT_LENGTH] = {"content-length", is_content_length},
    [CONTENT_RANGE] = {"content-range", is_content_range},
    [RANGE] = {"range", is_range},
    [HOST] = {"host", NULL},
    [CONNECTION] = {"connection", is_keep_alive},
    [LOOKED_AT] = {"access-control-request-headers", NULL},
    {"access-control-request-method", NULL},
    {"content-encoding", NULL},
    {"expect", NULL},
    {"if-match", NULL},
    {"if-range", NULL},
    {"origin", NULL},
    {"transfer-encoding", NULL},
    {"upgrade", NULL},
};

#define FIELDS_COUNT (sizeof(FIELDS) / sizeof(*FIELDS))

/* Whatever the locale. */
static bool is_name(struct http_text text, const char *name) {
    for (; text.at < text.end && *name; text.at++, name++) {
        char c = *text.at >= 'A' && *text.at <= 'Z' ? (char)(*text.at + ('a' - 'A')) : *text.at;
        if (c != *name)
            return false;
    }
    return text.at == text.end && !*name;
}

static size_t find_field(struct http_text name) {
    size_t i = 0;
    while (i < FIELDS_COUNT && !is_name(name, FIELDS[i].name))
        i++;
    return i;
}

/* A token (RFC 9110 5.6.2): another name may be one of the above for somebody who reads it less strictly. */
static bool is_token(struct http_text text) {
    bool is_valid = text.at < text.end;
    for (; text.at < text.end && is_valid; text.at++) {
        char c = *text.at;
        is_valid = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                   (c && strchr("!#$%&'*+-.^_`|~", c));
    }
    return is_valid;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

static bool has_controls(struct http_text text) {
    for (; text.at < text.end; text.at++)
        if (((unsigned char)*text.at < ' ' && *text.at != '\t') || *text.at == 0x7f)
            return true;
    return false;
}

/* Split a line into name and value, without the blanks around the latter. False: it is no field. */
static bool split(struct http_text line, struct http_head *head) {
    const char *colon = memchr(line.at, ':', (size_t)(line.end - line.at));
    if (!colon || has_controls(line))
        return false;
    head->name = (struct http_text){line.at, colon};
    head->value = (struct http_text){colon + 1, line.end};
    while (head->value.at < head->value.end && is_blank(*head->value.at))
        head->value.at++;
    while (head->value.at < head->value.end && is_blank(head->value.end[-1]))
        head->value.end--;
    return true;
}

/* seen: which of those that are looked at were there. None of them may be there twice. */
static bool take_field(struct http_text line, struct http_head *head, unsigned *seen) {
    if (!split(line, head))
        return false;
    size_t field = find_field(head->name);
    if (field >= LOOKED_AT)
        return field == FIELDS_COUNT && is_token(head->name);
    bool again = *seen & 1u << field;
    *seen |= 1u << field;
    return !again && (!FIELDS[field].is_valid || FIELDS[field].is_valid(head));
}

/* ---- heads ------------------------------------------------------------------------------------------------------ */

static bool take_request_line(struct http_text line, struct http_text target, struct http_head *head) {
    size_t length = (size_t)(target.end - target.at);
    if (http_skip(&line, "GET "))
        head->method = HTTP_GET;
    else if (http_skip(&line, "PUT "))
        head->method = HTTP_PUT;
    else if (http_skip(&line, "PATCH "))
        head->method = HTTP_PATCH;
    else
        return false;
    if ((size_t)(line.end - line.at) < length || memcmp(line.at, target.at, length) != 0)
        return false;
    line.at += length;
    head->flush = true;
    if (head->method == HTTP_PUT && http_skip(&line, "?flush="))
        head->flush = http_skip(&line, "y");
    if (!head->flush && !http_skip(&line, "n"))
        return false;
    return http_skip(&line, " HTTP/1.1") && is_end(line);
}

/* Whether what was said goes together. Host is obligatory (RFC 9112 3.2). */
static bool is_sound(const struct http_head *head, unsigned seen) {
    bool range = seen & 1u << RANGE, content_range = seen & 1u << CONTENT_RANGE;
    if (!(seen & 1u << HOST))
        return false;
    if (head->method == HTTP_GET)
        return range && !content_range && head->length == 0;
    if (head->method == HTTP_PUT)
        return !range && head->length > 0;
    return !range && !content_range && head->length > 0 && head->length <= HTTP_MAX_PATCH;
}

/* The next line without its end, which is CRLF. OTHER: it is not. */
static enum http_found next_line(struct http_text *data, struct http_text *line) {
    const char *end = memchr(data->at, '\n', (size_t)(data->end - data->at));
    if (!end)
        return HTTP_MORE;
    *line = (struct http_text){data->at, end - 1};
    if (end == data->at || end[-1] != '\r')
        return HTTP_OTHER;
    data->at = end + 1;
    return HTTP_WHOLE;
}

enum http_found http_parse_head(struct http_text data, struct http_text target, struct http_head *head) {
    struct http_text all = data, line;
    unsigned seen = 0, lines = 0;
    enum http_found found;
    *head = (struct http_head){0};
    if (data.end - data.at > (ptrdiff_t)HTTP_MAX_HEAD)
        data.end = data.at + HTTP_MAX_HEAD;
    while ((found = next_line(&data, &line)) == HTTP_WHOLE && (lines == 0 || !is_end(line))) {
        if (lines++ > HTTP_MAX_FIELDS)
            return HTTP_OTHER;
        if (!(lines == 1 ? take_request_line(line, target, head) : take_field(line, head, &seen)))
            return HTTP_OTHER;
    }
    head->size = (uint32_t)(data.at - all.at);
    if (found == HTTP_MORE && all.end - all.at >= (ptrdiff_t)HTTP_MAX_HEAD)
        return HTTP_OTHER;
    return found == HTTP_WHOLE && !is_sound(head, seen) ? HTTP_OTHER : found;
}
