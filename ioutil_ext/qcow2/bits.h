/* SPDX-License-Identifier: Apache-2.0 */

/* Sets of numbers from 0 on, a bit for each. A number beyond the room is not in the set. */

#ifndef IOUTIL_QCOW2_BITS_H
#define IOUTIL_QCOW2_BITS_H

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/qcow2.h"

/* Make room for the numbers below `room`. -ENOMEM. */
static inline int bits_reserve(struct bits *bits, uint64_t room) {
    uint64_t words = room / 64 + 1, had = bits->room / 64;
    if (words <= had)
        return 0;
    words = max_u64(words, had + had / 2);
    uint64_t *all = realloc(bits->words, words * sizeof(*all));
    if (!all)
        return -ENOMEM;
    memset(all + had, 0, (words - had) * sizeof(*all));
    bits->words = all;
    bits->room = words * 64;
    return 0;
}

static inline bool bits_test(const struct bits *bits, uint64_t number) {
    return number < bits->room && bits->words[number / 64] >> number % 64 & 1;
}

/* Returns whether this has changed something. */
static inline bool bits_set(struct bits *bits, uint64_t number) {
    uint64_t bit = UINT64_C(1) << number % 64, word = bits->words[number / 64];
    bits->words[number / 64] = word | bit;
    return !(word & bit);
}

static inline bool bits_clear(struct bits *bits, uint64_t number) {
    bool was = bits_test(bits, number);
    if (was)
        bits->words[number / 64] &= ~(UINT64_C(1) << number % 64);
    return was;
}

static inline void bits_free(struct bits *bits) {
    free(bits->words);
    *bits = (struct bits){0};
}

#endif
