/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Blocks of ranges. A block that is full is split. Blocks that have become nearly empty stay, until a set has no room
 * for another one and all of its blocks are filled anew. All sets of the process share a limit of memory.
 */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "api/durable.h"
#include "base/numbers.h"
#include "durable/ranges.h"

/* Most blocks of a set: even half full, they have room for all of its ranges. */
#define MOST_BLOCKS (2 * IOU_DURABLE_RANGES / BLOCK_RANGES)

/* Blocks of all sets together, but for the first one of each set. 64 MiB: 160 records whose sets are full, or many
   thousand usual ones. */
#define MOST_IN_ALL ((uint32_t)(64 * MIB / sizeof(struct block)))

/* Room of a directory that has any. */
#define FIRST_ROOM 8u

static atomic_uint_fast32_t in_all;

/* ---- the directory ---------------------------------------------------------------------------------------------- */

static bool grow_directory(struct ranges *set) {
    uint32_t room = set->room ? 2 * set->room : FIRST_ROOM;
    struct block **blocks = realloc(set->blocks, room * sizeof(struct block *));
    if (!blocks)
        return false;
    set->blocks = blocks;
    set->room = room;
    return true;
}

/* A set without blocks has no directory. */
static void drop_directory(struct ranges *set) {
    if (set->used)
        return;
    free(set->blocks);
    set->blocks = NULL;
    set->room = 0;
}

/* Count one more block of a set. False: it may not have it. */
static bool count_block(const struct ranges *set) {
    if (set->used == 0)
        return true;
    if (set->used == MOST_BLOCKS)
        return false;
    if (atomic_fetch_add(&in_all, 1) < MOST_IN_ALL)
        return true;
    atomic_fetch_sub(&in_all, 1);
    return false;
}

static void uncount_blocks(uint32_t before, uint32_t now) {
    atomic_fetch_sub(&in_all, (before ? before - 1 : 0) - (now ? now - 1 : 0));
}

/* Insert an empty block into the directory. NULL: there is no room. */
static struct block *add_block(struct ranges *set, uint32_t at) {
    if (!count_block(set))
        return NULL;
    struct block *block = set->used < set->room || grow_directory(set) ? malloc(sizeof(*block)) : NULL;
    if (!block) {
        uncount_blocks(set->used + 1, set->used);
        drop_directory(set);
        return NULL;
    }
    block->count = 0;
    memmove(&set->blocks[at + 1], &set->blocks[at], (set->used - at) * sizeof(block));
    set->blocks[at] = block;
    set->used++;
    return block;
}

/* Free the empty ones of the blocks from first up to, not including, last. */
static void drop_empty(struct ranges *set, uint32_t first, uint32_t last) {
    uint32_t before = set->used, kept = first;
    for (uint32_t i = first; i < last; i++)
        if (set->blocks[i]->count)
            set->blocks[kept++] = set->blocks[i];
        else
            free(set->blocks[i]);
    if (kept == last)
        return;
    memmove(&set->blocks[kept], &set->blocks[last], (set->used - last) * sizeof(*set->blocks));
    set->used -= last - kept;
    uncount_blocks(before, set->used);
    drop_directory(set);
}

/* ---- places ----------------------------------------------------------------------------------------------------- */

/* Return the index of the first range of a block that ends behind an offset. */
static uint32_t search(const struct block *block, uint64_t offset) {
    uint32_t low = 0, high = block->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (block->all[middle].end > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct place blocks_behind(const struct ranges *set, uint64_t offset) {
    uint32_t low = 0, high = set->used;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct block *block = set->blocks[middle];
        if (block->all[block->count - 1].end > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return (struct place){low, low < set->used ? search(set->blocks[low], offset) : 0};
}

iou_range *blocks_at(const struct ranges *set, struct place place) {
    return place.block < set->used ? &set->blocks[place.block]->all[place.index] : NULL;
}

iou_range *blocks_next(const struct ranges *set, struct place *place) {
    iou_range *range = blocks_at(set, *place);
    if (range && ++place->index == set->blocks[place->block]->count)
        *place = (struct place){place->block + 1, 0};
    return range;
}

/* ---- changes ---------------------------------------------------------------------------------------------------- */

static void put_range(struct block *block, uint32_t index, iou_range range) {
    memmove(&block->all[index + 1], &block->all[index], (block->count - index) * sizeof(range));
    block->all[index] = range;
    block->count++;
}

static bool block_has_room(const struct ranges *set, uint32_t block) {
    return block < set->used && set->blocks[block]->count < BLOCK_RANGES;
}

/* Move the second half of a full block to a new one. False: there is no room. */
static bool split_block(struct ranges *set, uint32_t at) {
    const uint32_t half = BLOCK_RANGES / 2;
    struct block *next = add_block(set, at + 1);
    if (!next)
        return false;
    memcpy(next->all, &set->blocks[at]->all[half], half * sizeof(*next->all));
    next->count = set->blocks[at]->count = half;
    return true;
}

bool blocks_insert(struct ranges *set, struct place place, iou_range range) {
    if (set->count == IOU_DURABLE_RANGES)
        return false;
    if (place.index == 0 && place.block > 0 && block_has_room(set, place.block - 1)) {
        place.block--; /* so that blocks which are filled in order are full */
        place.index = set->blocks[place.block]->count;
    } else if (!block_has_room(set, place.block)) {
        if (place.index == 0 ? !add_block(set, place.block) : !split_block(set, place.block))
            return false;
        if (place.index > BLOCK_RANGES / 2)
            place = (struct place){place.block + 1, place.index - BLOCK_RANGES / 2};
    }
    put_range(set->blocks[place.block], place.index, range);
    set->count++;
    return true;
}

void blocks_erase(struct ranges *set, struct place first, struct place last) {
    uint32_t end = last.index ? last.block + 1 : last.block; /* of the blocks that lose ranges */
    for (uint32_t i = first.block; i < end; i++) {
        struct block *block = set->blocks[i];
        uint32_t from = i == first.block ? first.index : 0, to = i == last.block ? last.index : block->count;
        memmove(&block->all[from], &block->all[to], (block->count - to) * sizeof(*block->all));
        block->count -= to - from;
        set->count -= to - from;
    }
    if (first.block < end)
        drop_empty(set, first.block, end);
}

void blocks_cut(struct ranges *set, uint64_t unit) {
    uint32_t kept = 0;
    struct place place = {0};
    for (iou_range *range; (range = blocks_next(set, &place));) {
        uint64_t start = round_up(range->start, unit), end = round_down(range->end, unit);
        set->lost = set->lost || start != range->start || end != range->end;
        if (start < end) {
            set->blocks[kept / BLOCK_RANGES]->all[kept % BLOCK_RANGES] = (iou_range){start, end};
            kept++;
        }
    }
    for (uint32_t i = 0; i < set->used; i++)
        set->blocks[i]->count = (uint32_t)min_u64(BLOCK_RANGES, kept - min_u64(kept, i * BLOCK_RANGES));
    set->count = kept;
    drop_empty(set, 0, set->used);
}
