/* SPDX-License-Identifier: Apache-2.0 */

/* Parsers that only lanes call, for tests that call them with any input. */

#include "http/plain.h"

int parse_patch(const char *data, size_t length);

int parse_patch(const char *data, size_t length) {
    struct http_patch patch;
    return http_parse_patch((struct http_text){data, data + length}, &patch);
}
