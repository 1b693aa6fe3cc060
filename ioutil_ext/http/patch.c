/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The JSON of a PATCH, in the form that programs write: one object of known keys, each once, with plain numbers. Python
 * reads JSON in other forms.
 */

#include <string.h>

#include "http/plain.h"

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
