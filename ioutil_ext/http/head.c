/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The reader of request heads. It is strict (RFC 9112), because a head that two programs read differently allows
 * request smuggling. It refuses line ends other than CRLF, folded lines, white space before a colon, control
 * characters, several Content-Length fields, a Content-Length that is not digits, Content-Length together with
 * Transfer-Encoding, and codings other than chunked.
 *
 * It reads all heads: those of requests that lanes serve, and those that Python hands on. Python answers refusals.
 */

#include <string.h>

#include "base/numbers.h"
#include "http/head.h"

/* ---- text ------------------------------------------------------------------------------------------------------- */

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

bool http_is_word(struct http_text text, const char *word) {
    for (; text.at < text.end && *word; text.at++, word++) {
        char c = *text.at >= 'A' && *text.at <= 'Z' ? (char)(*text.at + ('a' - 'A')) : *text.at;
        if (c != *word)
            return false;
    }
    return text.at == text.end && !*word;
}

/* The classes of a byte: it may be part of a token (RFC 9110 5.6.2), or of a name without escapes (RFC 3986 2.3). */
enum { TOKEN = 1, NAME = 2, BOTH = TOKEN | NAME };

static const unsigned char PARTS[256] = {
    ['!'] = TOKEN,        ['#' ... '\''] = TOKEN, ['*' ... '+'] = TOKEN, ['-' ... '.'] = BOTH,
    ['0' ... '9'] = BOTH, ['A' ... 'Z'] = BOTH,   ['^'] = TOKEN,         ['_'] = BOTH,
    ['`'] = TOKEN,        ['a' ... 'z'] = BOTH,   ['|'] = TOKEN,         ['~'] = BOTH,
};

/* Move past the bytes that are of this class, and return them. */
static struct http_text take_class(struct http_text *text, unsigned char part) {
    struct http_text taken = {text->at, text->at};
    while (taken.end < text->end && PARTS[(unsigned char)*taken.end] & part)
        taken.end++;
    text->at = taken.end;
    return taken;
}

bool http_token(struct http_text *text) {
    struct http_text taken = take_class(text, TOKEN);
    return taken.at < taken.end;
}

bool http_is_name(struct http_text text) {
    struct http_text taken = take_class(&text, NAME);
    return taken.at < taken.end && text.at == text.end;
}

/* The next two functions check all bytes without an early end, so that the compiler can vectorise them. */
static bool is_value(struct http_text text) {
    unsigned char bad = 0;
    for (; text.at < text.end; text.at++) {
        unsigned char c = (unsigned char)*text.at;
        bad |= (c < ' ' && c != '\t') || c == 0x7f;
    }
    return !bad;
}

/* Whether the text is a request target: not empty, and without a fragment. */
static bool is_target(struct http_text text) {
    unsigned char bad = text.at == text.end;
    for (; text.at < text.end; text.at++) {
        unsigned char c = (unsigned char)*text.at;
        bad |= c <= ' ' || c >= 0x7f || c == '#';
    }
    return !bad;
}

static void trim(struct http_text *text) {
    while (text->at < text->end && (*text->at == ' ' || *text->at == '\t'))
        text->at++;
    while (text->at < text->end && (text->end[-1] == ' ' || text->end[-1] == '\t'))
        text->end--;
}

/* ---- fields ----------------------------------------------------------------------------------------------------- */

/* A SINGLE field must not occur twice: programs differ in which value they use. */
#define SINGLE(text) {.name = text, .length = sizeof(text) - 1, .is_single = true}
#define OTHER(text) {.name = text, .length = sizeof(text) - 1}

/* The fields that matter for framing or meaning. All others are ignored. */
static const struct {
    const char *name;
    ptrdiff_t length;
    bool is_single;
} FIELDS[HTTP_FIELDS] = {
    [HTTP_CONTENT_LENGTH] = SINGLE("content-length"),
    [HTTP_CONTENT_RANGE] = SINGLE("content-range"),
    [HTTP_RANGE] = SINGLE("range"),
    [HTTP_HOST] = SINGLE("host"),
    [HTTP_CONNECTION] = OTHER("connection"),
    [HTTP_TRANSFER_ENCODING] = SINGLE("transfer-encoding"),
    [HTTP_EXPECT] = SINGLE("expect"),
    [HTTP_UPGRADE] = OTHER("upgrade"),
    [HTTP_ORIGIN] = OTHER("origin"),
    [HTTP_ACCEPT] = OTHER("accept"),
    [HTTP_IF_MATCH] = OTHER("if-match"),
    [HTTP_IF_NONE_MATCH] = OTHER("if-none-match"),
    [HTTP_IF_RANGE] = OTHER("if-range"),
    [HTTP_CONTENT_ENCODING] = SINGLE("content-encoding"),
    [HTTP_ACCESS_CONTROL_REQUEST_HEADERS] = OTHER("access-control-request-headers"),
    [HTTP_ACCESS_CONTROL_REQUEST_METHOD] = OTHER("access-control-request-method"),
};

static unsigned find_field(struct http_text name) {
    unsigned i = 0;
    while (i < HTTP_FIELDS && (name.end - name.at != FIELDS[i].length || !http_is_word(name, FIELDS[i].name)))
        i++;
    return i;
}

/* Move past the text before the next separator, and the separator; return that text without blanks at its ends. */
static struct http_text take_until(struct http_text *text, char separator) {
    const char *found = memchr(text->at, separator, (size_t)(text->end - text->at));
    struct http_text taken = {text->at, found ? found : text->end};
    text->at = found ? found + 1 : text->end;
    trim(&taken);
    return taken;
}

/* Note whether an Accept field (RFC 9110 12.5.1) names JSON. Its parameters have no effect. */
static void take_accept(struct http_text value, struct http_head *head) {
    while (value.at < value.end) {
        struct http_text range = take_until(&value, ',');
        if (http_is_word(take_until(&range, ';'), "application/json"))
            head->asks |= IOU_ASKS_JSON;
    }
}

/* Add the options of a Connection field (RFC 9110 7.6.1), of which there may be several. */
static void take_options(struct http_text value, struct http_head *head) {
    while (value.at < value.end) {
        struct http_text option = take_until(&value, ',');
        if (http_is_word(option, "close"))
            head->options |= HTTP_CLOSE;
        else if (http_is_word(option, "keep-alive"))
            head->options |= HTTP_KEEP_ALIVE;
        else
            head->options |= HTTP_OTHER_OPTION;
    }
}

/* Split a line into name and value. False: it is not a field. */
static bool split_line(struct http_text line, struct http_text *name, struct http_text *value) {
    *name = take_class(&line, TOKEN);
    if (name->at == name->end || !http_skip(&line, ":"))
        return false;
    *value = line;
    trim(value);
    return is_value(line);
}

bool http_is_field(struct http_text line) {
    struct http_text name, value;
    return split_line(line, &name, &value);
}

static iou_head_result take_field(struct http_text line, struct http_head *head) {
    struct http_text name, value;
    if (!split_line(line, &name, &value))
        return IOU_HEAD_FIELD;
    unsigned field = find_field(name);
    if (field == HTTP_FIELDS)
        return IOU_HEAD_WHOLE;
    if (FIELDS[field].is_single && http_has(head, field)) {
        head->twice = FIELDS[field].name;
        return IOU_HEAD_TWICE;
    }
    head->seen |= 1u << field;
    head->values[field] = value;
    if (field == HTTP_CONNECTION)
        take_options(value, head);
    if (field == HTTP_ACCEPT)
        take_accept(value, head);
    if (field == HTTP_ORIGIN)
        head->asks |= IOU_ASKS_ORIGIN;
    return IOU_HEAD_WHOLE;
}

/* ---- heads ------------------------------------------------------------------------------------------------------ */

static bool take_request_line(struct http_text line, struct http_head *head) {
    head->method = take_class(&line, TOKEN);
    if (head->method.at == head->method.end || !http_skip(&line, " "))
        return false;
    const char *end = memchr(line.at, ' ', (size_t)(line.end - line.at));
    head->target = (struct http_text){line.at, end ? end : line.end};
    line.at = head->target.end;
    if (!is_target(head->target) || !http_skip(&line, " HTTP/1."))
        return false;
    if (line.end - line.at != 1 || (*line.at != '0' && *line.at != '1'))
        return false;
    head->minor = (uint32_t)(*line.at - '0');
    return true;
}

/* Take the text before the next CRLF, which exists. */
static struct http_text take_line(struct http_text *rest) {
    struct http_text line = {rest->at, rest->at};
    do
        line.end = memchr(line.end, '\r', (size_t)(rest->end - line.end)) + 1;
    while (*line.end != '\n');
    rest->at = line.end + 1;
    line.end--;
    return line;
}

/* Check that the length of the message is known and unambiguous (RFC 9112 6.3), and that Host is there (3.2). */
static iou_head_result check_framing(struct http_head *head) {
    bool has_length = http_has(head, HTTP_CONTENT_LENGTH);
    struct http_text length = head->values[HTTP_CONTENT_LENGTH];
    if (head->minor == 1 && !http_has(head, HTTP_HOST))
        return IOU_HEAD_NO_HOST;
    if (has_length && (!http_number(&length, &head->length) || length.at < length.end))
        return IOU_HEAD_LENGTH;
    if (!http_has(head, HTTP_TRANSFER_ENCODING))
        return IOU_HEAD_WHOLE;
    if (has_length)
        return IOU_HEAD_LENGTHS;
    head->chunked = head->minor == 1 && http_is_word(head->values[HTTP_TRANSFER_ENCODING], "chunked");
    return head->chunked ? IOU_HEAD_WHOLE : IOU_HEAD_CODING;
}

/* Read the lines of a head. lines: without the empty one at the end. */
static iou_head_result read_lines(struct http_text lines, struct http_head *head) {
    iou_head_result result = IOU_HEAD_WHOLE;
    if (!take_request_line(take_line(&lines), head))
        return IOU_HEAD_REQUEST_LINE;
    for (unsigned count = 0; lines.at < lines.end; count++) {
        struct http_text line = take_line(&lines);
        if (count == IOU_HEAD_MAX_FIELDS)
            return IOU_HEAD_FIELDS;
        if (result == IOU_HEAD_WHOLE)
            result = take_field(line, head);
    }
    return result == IOU_HEAD_WHOLE ? check_framing(head) : result;
}

/* Find the empty line that ends the head. searched: bytes that do not contain its end. */
static iou_head_result find_end(struct http_text data, uint64_t searched, uint32_t *size) {
    uint64_t length = (uint64_t)(data.end - data.at), most = min_u64(length, IOU_HEAD_MAX);
    uint64_t start = min_u64(searched, most);
    const char *at = data.at + (start > 3 ? start - 3 : 0), *end = data.at + most;
    bool is_bare = false;
    while (at < end && (at = memchr(at, '\n', (size_t)(end - at)))) {
        if (at - data.at >= 3 && memcmp(at - 3, "\r\n\r", 3) == 0) {
            *size = (uint32_t)(at + 1 - data.at);
            return IOU_HEAD_WHOLE;
        }
        is_bare = is_bare || at == data.at || at[-1] != '\r';
        at++;
    }
    if (length >= IOU_HEAD_MAX)
        return IOU_HEAD_TOO_LONG;
    return is_bare ? IOU_HEAD_LINE_END : IOU_HEAD_MORE;
}

iou_head_result http_read_head(struct http_text data, uint64_t searched, struct http_head *head) {
    *head = (struct http_head){0};
    iou_head_result result = find_end(data, searched, &head->size);
    if (result != IOU_HEAD_WHOLE)
        return result;
    return read_lines((struct http_text){data.at, data.at + head->size - 2}, head);
}
