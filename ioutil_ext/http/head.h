/* SPDX-License-Identifier: Apache-2.0 */

/* Heads of requests (head.c), of all of them. No lane is needed. */

#ifndef IOUTIL_HTTP_HEAD_H
#define IOUTIL_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api/head.h"

/* Digits of a number: it is below 2^63 then. */
#define HTTP_MAX_DIGITS 18u

/* A piece of text. */
struct http_text {
    const char *at, *end;
};

/* Move over what is expected; false: something else is there. Here, so that nothing counts the bytes of a literal. */
static inline bool http_skip(struct http_text *text, const char *expected) {
    size_t length = strlen(expected);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, expected, length) != 0)
        return false;
    text->at += length;
    return true;
}

/* Move over a number of ASCII digits. False: there is none, or it is too long. */
bool http_number(struct http_text *text, uint64_t *number);

/* Whether it is this word, which is given in lower case, in any case and whatever the locale. */
bool http_is_word(struct http_text text, const char *word);

/* Those that have a part in framing or meaning: head.c. */
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
    HTTP_IF_MATCH,
    HTTP_IF_RANGE,
    HTTP_CONTENT_ENCODING,
    HTTP_ACCESS_CONTROL_REQUEST_HEADERS,
    HTTP_ACCESS_CONTROL_REQUEST_METHOD,
    HTTP_FIELDS
};

/* What Connection says. */
enum { HTTP_CLOSE = 1, HTTP_KEEP_ALIVE = 2, HTTP_OTHER_OPTION = 4 };

struct http_head {
    struct http_text method, target;
    uint32_t minor;                       /* HTTP/1.minor */
    uint32_t size;                        /* bytes of the head */
    uint32_t seen;                        /* fields, by their bits */
    uint32_t options;                     /* of Connection */
    struct http_text values[HTTP_FIELDS]; /* of the last of those that may come more than once */
    uint64_t length;                      /* of the body, unless it is chunked */
    bool chunked;
    const char *twice; /* the name of a field that stands twice, and may not */
};

static inline bool http_has(const struct http_head *head, unsigned field) {
    return head->seen & 1u << field;
}

/* Move over a token (RFC 9110 5.6.2); false: there is none. */
bool http_token(struct http_text *text);

/* Whether it is a name that needs no escapes (RFC 3986 2.3). */
bool http_is_name(struct http_text text);

/* Whether it is a field: a name, a colon, and a value without control characters. */
bool http_is_field(struct http_text line);

/* Read the head that the data begins with, as iou_head_read() does. */
iou_head_result http_read_head(struct http_text data, uint64_t searched, struct http_head *head);

#endif
