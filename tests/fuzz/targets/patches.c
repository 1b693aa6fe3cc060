/* SPDX-License-Identifier: Apache-2.0 */

/* The JSON of a PATCH: what was understood says the same when it is written again, and a part of it says nothing. */

#include "fuzz.h"

static bool parse(const char *data, size_t size, struct http_patch *patch) {
    char *copy = malloc(size);
    CHECK(copy || size == 0);
    if (size)
        memcpy(copy, data, size);
    bool valid = http_parse_patch((struct http_text){copy, copy + size}, patch);
    free(copy);
    return valid;
}

static size_t put(const struct http_patch *patch, char *text, size_t size) {
    const char *flush = patch->flush ? "true" : "false";
    if (patch->is_flush)
        return (size_t)snprintf(text, size, "{\"op\": \"flush\"}");
    return (size_t)snprintf(
        text, size, "{\"op\": \"zero\", \"offset\": %llu, \"size\": %llu, \"flush\": %s, \"fast\": %s}",
        (unsigned long long)patch->offset, (unsigned long long)patch->size, flush, patch->fast ? "true" : "false");
}

static bool is_same(const struct http_patch *a, const struct http_patch *b) {
    return a->is_flush == b->is_flush && a->flush == b->flush && a->fast == b->fast && a->offset == b->offset &&
           a->size == b->size;
}

static unsigned count(const char *data, size_t size, const char *text) {
    size_t length = strlen(text);
    unsigned found = 0;
    for (size_t i = 0; i + length <= size; i++)
        found += memcmp(data + i, text, length) == 0;
    return found;
}

static void run(const char *data, size_t size) {
    static const char *const KEYS[] = {"\"op\"", "\"offset\"", "\"size\"", "\"fast\""};
    struct http_patch patch, again;
    char text[300];
    if (!parse(data, size, &patch))
        return;
    CHECK(patch.offset <= INT64_MAX && patch.size <= INT64_MAX);
    if (patch.is_flush)
        CHECK(!patch.flush && !patch.fast && patch.offset == 0 && patch.size == 0);
    CHECK(parse(text, put(&patch, text, sizeof(text)), &again) && is_same(&patch, &again));
    for (size_t i = 0; i < sizeof(KEYS) / sizeof(*KEYS); i++)
        CHECK(count(data, size, KEYS[i]) <= 1); /* readers differ in which of two they take */
    size_t end = size;
    while (data[end - 1] != '}')
        end--;
    for (size_t part = 0; part < end; part++)
        CHECK(!parse(data, part, &again));
}

const struct target http_patch_target = {.name = "http_patch", .run = run};
