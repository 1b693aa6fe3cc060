/* SPDX-License-Identifier: Apache-2.0 */

/* Heads of HTTP requests: what is found does not depend on how the bytes come, and holds to the limits. */

#include "fuzz.h"

static const char TARGET[] = "/images/x";

static enum http_found parse(const char *data, size_t size, struct http_head *head) {
    /* Of exactly this size: a byte beyond it is seen. */
    char *copy = malloc(size);
    CHECK(copy || size == 0);
    if (size)
        memcpy(copy, data, size);
    struct http_text text = {copy, copy + size}, target = {TARGET, TARGET + sizeof(TARGET) - 1};
    enum http_found found = http_parse_head(text, target, head);
    free(copy);
    return found;
}

static void check_head(const char *data, size_t size, const struct http_head *head) {
    CHECK(head->size > 0 && head->size <= size && head->size <= HTTP_MAX_HEAD);
    CHECK(memcmp(data + head->size - 2, "\r\n", 2) == 0);
    CHECK(head->length <= INT64_MAX && head->first <= INT64_MAX && head->last <= INT64_MAX);
    if (head->method == HTTP_GET)
        CHECK(head->first <= head->last && head->length == 0);
    else
        CHECK(head->length > 0);
    if (head->method == HTTP_PATCH)
        CHECK(head->length <= HTTP_MAX_PATCH);
}

static bool is_same(const struct http_head *a, const struct http_head *b) {
    return a->method == b->method && a->flush == b->flush && a->size == b->size && a->length == b->length &&
           a->first == b->first && a->last == b->last;
}

/* Once it is known what a head is, more bytes change nothing; before, it is not known. */
static void check_part(const char *data, size_t part, enum http_found found, const struct http_head *whole) {
    struct http_head head;
    enum http_found early = parse(data, part, &head);
    if (found == HTTP_WHOLE && part >= whole->size)
        CHECK(early == HTTP_WHOLE && is_same(&head, whole));
    else if (found == HTTP_WHOLE)
        CHECK(early == HTTP_MORE);
    else
        CHECK(early == HTTP_MORE || early == found);
}

static void run(const char *data, size_t size) {
    struct http_head head;
    enum http_found found = parse(data, size, &head);
    if (found == HTTP_WHOLE)
        check_head(data, size, &head);
    else if (size >= HTTP_MAX_HEAD)
        CHECK(found == HTTP_OTHER);
    for (size_t part = 0; part < size; part++)
        if (data[part] == '\n' || part % 251 == 0)
            check_part(data, part, found, &head);
}

const struct target http_head_target = {.name = "http_head", .run = run};
