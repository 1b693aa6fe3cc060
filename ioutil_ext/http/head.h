/* SPDX-License-Identifier: Apache-2.0 */

/* The reader of all request heads (head.c). It needs no lane. */

#ifndef IOUTIL_HTTP_HEAD_H
#define IOUTIL_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api/head.h"

/* Most digits of a number, which is below 2^63 then. */
#define HTTP_MAX_DIGITS 18u

/* A piece of text, without a NUL at its end. */
struct http_text {
    const char *at, *end;
};

/* Move past the expected text. Returns false if the text is different. Inline, so that strlen() of a literal is a
   constant. */
static inline bool http_skip(struct http_text *text, const char *expected) {
    size_t length = strlen(expected);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, expected, length) != 0)
        return false;
    text->at += length;
    return true;
}

/* Read a number of ASCII digits, and move past it. Returns false if there is none, or if it has too many digits. */
bool http_number(struct http_text *text, uint64_t *number);

/* Return whether the text is this word, which is given in lower case. Ignores the case of ASCII, and does not use the
   locale. */
bool http_is_word(struct http_text text, const char *word);

/* The fields that matter for framing or meaning; see head.c. */
enum http_field {
    HTTP_CONTENT_LENGTH,
    HTTP_CONTENT_RANGE,
    HTTP_RANGE,
    HTTP_HOST,
    HTTP_CONNECTION,
    HTTP_TRANSFER_ENCODING,
    HTTP_EXPECT,
    HTTP_UPGRADE,
    HTTP_ORIGIN,
    HTTP_ACCEPT,
    HTTP_IF_MATCH,
    HTTP_IF_NONE_MATCH,
    HTTP_IF_RANGE,
    HTTP_CONTENT_ENCODING,
    HTTP_ACCESS_CONTROL_REQUEST_HEADERS,
    HTTP_ACCESS_CONTROL_REQUEST_METHOD,
    HTTP_FIELDS
};

/* The options of Connection (RFC 9110 7.6.1). */
enum { HTTP_CLOSE = 1, HTTP_KEEP_ALIVE = 2, HTTP_OTHER_OPTION = 4 };

struct http_head {
    struct http_text method, target;
    uint32_t minor;                       /* HTTP/1.minor */
    uint32_t size;                        /* bytes of the head */
    uint32_t seen;                        /* fields, by their bits */
    uint32_t options;                     /* of Connection */
    uint32_t asks;                        /* iou_asks */
    struct http_text values[HTTP_FIELDS]; /* the last one, if a field occurs more than once */
    uint64_t length;                      /* bytes of the body, unless it is chunked */
    bool chunked;
    const char *twice; /* the name of a field that occurs twice, and must not */
};

static inline bool http_has(const struct http_head *head, unsigned field) {
    return head->seen & 1u << field;
}

/* Move past a token (RFC 9110 5.6.2). Returns false if there is none. */
bool http_token(struct http_text *text);

/* Return whether the text is a name that needs no escapes (RFC 3986 2.3). */
bool http_is_name(struct http_text text);

/* Return whether the line is a field: a name, a colon, and a value without control characters (RFC 9112 5). */
bool http_is_field(struct http_text line);

/* Read the head at the start of the data, as iou_head_read() does. */
iou_head_result http_read_head(struct http_text data, uint64_t searched, struct http_head *head);

#endif
