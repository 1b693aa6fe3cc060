/* SPDX-License-Identifier: Apache-2.0 */

/* Units of bytes, and arithmetic on uint64_t. */

#ifndef IOUTIL_BASE_NUMBERS_H
#define IOUTIL_BASE_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define PAGE_UNIT 4096u

/* The number of elements of an array. */
#define LENGTH(array) (sizeof(array) / sizeof(*(array)))

/* The unit is a power of two. */
static inline uint64_t round_down(uint64_t value, uint64_t unit) {
    return value & ~(unit - 1);
}

/* value + unit must not overflow; values here are below 2^63. */
static inline uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) & ~(unit - 1);
}

/* Return how many units of `by` bytes the value takes. value + by must not overflow. */
static inline uint64_t divide_up(uint64_t value, uint64_t by) {
    return (value + by - 1) / by;
}

static inline bool is_aligned(uint64_t value, uint64_t unit) {
    return (value & (unit - 1)) == 0;
}

/* Return whether a range lies in the first `size` bytes. No sum can overflow. */
static inline bool lies_in(uint64_t offset, uint64_t length, uint64_t size) {
    return length <= size && offset <= size - length;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

#endif
