/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sets of bytes, as sorted ranges that neither overlap nor touch (ranges.c), and their memory: a directory of blocks of
 * ranges (blocks.c). Not thread-safe, but for the limit of memory that all sets have together.
 */

#ifndef IOUTIL_DURABLE_RANGES_H
#define IOUTIL_DURABLE_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "api/ioutil.h"

/* Most ranges of a block. Adding a range moves half a KiB, whatever the size of the set. With one array of 16,384
   ranges it moved 128 KiB, which was a tenth of the processor time of random writes of 4 KiB to memory. */
#define BLOCK_RANGES 64u

struct block {
    uint32_t count; /* never 0 */
    iou_range all[BLOCK_RANGES];
};

/* A set of bytes. All zeros is an empty set. A set without room for all of its ranges loses some, so it may lack bytes,
   but never has too many. */
struct ranges {
    struct block **blocks;
    uint32_t used, room; /* blocks in the directory */
    uint32_t count;      /* ranges */
    uint64_t unit; /* to which ranges were cut when the set was full, or 0; removals that empty the set reset it */
    bool lost;     /* bytes were lost; the owner clears it */
};

/* The place of a range. {used, 0} is the place behind the last one. */
struct place {
    uint32_t block, index;
};

/* Return the place of the first range that ends behind an offset. */
struct place blocks_behind(const struct ranges *set, uint64_t offset);

/* Return the range at a place, or NULL if there is none. */
iou_range *blocks_at(const struct ranges *set, struct place place);

/* Do the same, and move to the next place. */
iou_range *blocks_next(const struct ranges *set, struct place *place);

/* Insert a range before a place. Returns false if there is no room. */
bool blocks_insert(struct ranges *set, struct place place, iou_range range);

/* Remove the ranges from the first place up to, not including, the last one. */
void blocks_erase(struct ranges *set, struct place first, struct place last);

/* Shorten all ranges to whole units, a power of two, and fill the blocks. Bytes outside of whole units are lost. */
void blocks_cut(struct ranges *set, uint64_t unit);

/* ---- ranges.c --------------------------------------------------------------------------------------------------- */

void ranges_free(struct ranges *set);

/* Return the part of a range to add. If the set was full before, this is whole units only, unless the range touches one
   of the set. Otherwise small ranges all over a large disk would fill the set many times a second. */
iou_range ranges_fit(const struct ranges *set, uint64_t start, uint64_t end);

/* Add or remove the bytes from `start` up to, not including, `end`. */
void ranges_add(struct ranges *set, uint64_t start, uint64_t end);
void ranges_remove(struct ranges *set, uint64_t start, uint64_t end);

/* Add all bytes of another set. */
void ranges_join(struct ranges *set, const struct ranges *other);

/* Move all ranges to an empty set. */
void ranges_move(struct ranges *from, struct ranges *to);

/* Move the bytes from start to end to an empty set. */
void ranges_cut(struct ranges *from, uint64_t start, uint64_t end, struct ranges *to);

bool ranges_overlap(const struct ranges *set, uint64_t start, uint64_t end);

#endif
