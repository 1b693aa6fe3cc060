/* SPDX-License-Identifier: Apache-2.0 */

/* Sets of bytes, as sorted ranges that neither overlap nor touch (ranges.c). Not thread-safe. */

#ifndef IOUTIL_DURABLE_RANGES_H
#define IOUTIL_DURABLE_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "api/ioutil.h"

/* All zeros: an empty set. A set that has no room for all of its ranges loses some: it has less bytes, never more. */
struct ranges {
    iou_range *all;
    uint32_t count, room;
    bool lost; /* bytes were lost; the owner clears it */
};

void ranges_free(struct ranges *set);

/* Add, or take away, the bytes from start up to, not including, end. */
void ranges_add(struct ranges *set, uint64_t start, uint64_t end);
void ranges_remove(struct ranges *set, uint64_t start, uint64_t end);

/* Add all bytes of another set. */
void ranges_join(struct ranges *set, const struct ranges *other);

/* Move all ranges to an empty set. */
void ranges_move(struct ranges *from, struct ranges *to);

/* Move the bytes from start to end to an empty set. */
void ranges_cut(struct ranges *from, uint64_t start, uint64_t end, struct ranges *to);

bool ranges_overlap(const struct ranges *set, uint64_t start, uint64_t end);

/* Return the index of the first range that ends behind an offset; count: there is none. */
uint32_t ranges_behind(const struct ranges *set, uint64_t offset);

#endif
