/* SPDX-License-Identifier: Apache-2.0 */

/* Heads of HTTP requests: what is found does not depend on how the bytes come, and holds to the limits. */

#include "fuzz.h"

struct found {
    iou_head_result result;
    iou_head head;
};

static struct found parse(const char *data, size_t size, size_t searched) {
    /* Of exactly this size: a byte beyond it is seen. */
    char *copy = malloc(size);
    CHECK(copy || size == 0);
    if (size)
        memcpy(copy, data, size);
    struct found found;
    found.result = (iou_head_result)iou_head_read(copy, size, searched, &found.head);
    free(copy);
    return found;
}

static bool is_same(const struct found *a, const struct found *b) {
    return a->result == b->result && memcmp(&a->head, &b->head, sizeof(a->head)) == 0;
}

static bool is_inside(struct http_text text, const char *data, uint32_t size) {
    return text.at >= data && text.at <= text.end && text.end <= data + size;
}

static void check_plain(const struct http_head *head, const struct http_plain *plain) {
    CHECK(is_inside(plain->path, head->target.at, (uint32_t)(head->target.end - head->target.at)));
    CHECK(plain->length <= INT64_MAX && plain->first <= INT64_MAX && plain->last <= INT64_MAX);
    if (plain->method == HTTP_GET)
        CHECK(plain->length == 0 && (plain->part != HTTP_SPAN || plain->first <= plain->last));
    else
        CHECK(plain->length > 0 && plain->part == HTTP_ALL);
    CHECK(!plain->expects || plain->method == HTTP_PUT);
    if (plain->method == HTTP_PATCH)
        CHECK(plain->length <= HTTP_MAX_PATCH);
}

static void check_head(const char *data, size_t size, const iou_head *said) {
    struct http_head head;
    struct http_plain plain;
    CHECK(http_read_head((struct http_text){data, data + size}, 0, &head) == IOU_HEAD_WHOLE);
    CHECK(head.size > 3 && head.size <= size && head.size <= IOU_HEAD_MAX && said->size == head.size);
    CHECK(memcmp(data + head.size - 4, "\r\n\r\n", 4) == 0);
    CHECK(is_inside(head.method, data, head.size) && is_inside(head.target, data, head.size));
    for (unsigned field = 0; field < HTTP_FIELDS; field++)
        CHECK(!http_has(&head, field) || is_inside(head.values[field], data, head.size));
    CHECK(said->length < UINT64_C(1000000000000000000));
    CHECK(!head.chunked || (said->length == 0 && !(said->flags & IOU_HEAD_KEEP_ALIVE)));
    bool is_plain = http_read_plain(&head, &plain);
    CHECK(is_plain == !!(said->flags & IOU_HEAD_PLAIN));
    CHECK(!is_plain || said->flags & IOU_HEAD_KEEP_ALIVE);
    if (is_plain)
        check_plain(&head, &plain);
}

/* Once it is known what a head is, more bytes change nothing; before, it is not known, and is not looked for again. */
static void check_part(const char *data, size_t size, size_t part, const struct found *whole) {
    struct found early = parse(data, part, 0);
    if (whole->result == IOU_HEAD_WHOLE && part >= whole->head.size)
        CHECK(is_same(&early, whole));
    else if (whole->result == IOU_HEAD_WHOLE)
        CHECK(early.result == IOU_HEAD_MORE);
    if (early.result == IOU_HEAD_MORE) {
        struct found later = parse(data, size, part);
        CHECK(is_same(&later, whole));
    }
}

static void run(const char *data, size_t size) {
    struct found found = parse(data, size, 0);
    if (found.result == IOU_HEAD_WHOLE)
        check_head(data, size, &found.head);
    else if (size >= IOU_HEAD_MAX)
        CHECK(found.result != IOU_HEAD_MORE);
    for (size_t part = 0; part < size; part++)
        if (data[part] == '\n' || part % 251 == 0)
            check_part(data, size, part, &found);
}

const struct target http_head_target = {.name = "http_head", .run = run};
