/* SPDX-License-Identifier: Apache-2.0 */

/* The parsers of lanes that have loops over what clients send, for tests that call them with any input. */

#include <string.h>

#include "http.h"

int parse_head(const char *data, size_t length);
int parse_patch(const char *data, size_t length);

int parse_head(const char *data, size_t length) {
    static const char TARGET[] = "/images/a";
    struct http_head head;
    return (int)http_parse_head((struct http_text){data, data + length},
                                (struct http_text){TARGET, TARGET + strlen(TARGET)}, &head);
}

int parse_patch(const char *data, size_t length) {
    struct http_patch patch;
    return http_parse_patch((struct http_text){data, data + length}, &patch);
}
