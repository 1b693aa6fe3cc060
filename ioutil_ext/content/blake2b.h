/* SPDX-License-Identifier: Apache-2.0 */

/* The implementations of BLAKE2b's compression for different processors (blake2b.c). */

#ifndef IOUTIL_CONTENT_BLAKE2B_H
#define IOUTIL_CONTENT_BLAKE2B_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/hash.h"

/* Where the next chunk of each message is. */
struct chunks {
    const uint8_t *at[IOU_HASH_LANES];
    size_t step[IOU_HASH_LANES]; /* bytes to the next chunk; 0 if all chunks are at the same place */
};

struct blake2b_way {
    const char *name;
    bool (*works)(void); /* on this processor */
    /* Compress `number` chunks of each message. `bytes` is how many bytes of each chunk count. `final` has all bits set
       for the last chunk of a message, else it is 0. */
    void (*compress)(iou_blake2b *state, struct chunks chunks, uint64_t number, uint64_t bytes, uint64_t final);
};

/* The fastest one comes first; the last one works everywhere. */
enum { BLAKE2B_WAYS = 3 };
extern const struct blake2b_way blake2b_ways[BLAKE2B_WAYS];

#endif
