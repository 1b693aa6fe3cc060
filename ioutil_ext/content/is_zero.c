/* SPDX-License-Identifier: Apache-2.0 */

#include <stdbool.h>
#include <string.h>

#include "api/ioutil.h"

/*
 * The bytes of a span. The OR of its words, which the compiler makes with vector instructions, is tested once. With a
 * test for each word there would be no vectors; with one test at the end, data that is not zero would be read as a
 * whole.
 */
#define SPAN 1024u

static bool span_is_zero(const unsigned char *span) {
    uint64_t all = 0;
    for (size_t i = 0; i < SPAN; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, span + i, sizeof(word)); /* any alignment */
        all |= word;
    }
    return all == 0;
}

int iou_is_zero(const void *buffer, uint64_t length) {
    const unsigned char *bytes = buffer;
    for (; length >= SPAN; bytes += SPAN, length -= SPAN)
        if (!span_is_zero(bytes))
            return 0;
    unsigned char all = 0;
    for (size_t i = 0; i < length; i++)
        all |= bytes[i];
    return all == 0;
}
