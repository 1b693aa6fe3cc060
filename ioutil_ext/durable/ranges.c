/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sets of bytes. Uploads add ranges that touch the one before, so a set mostly has one range for each connection. A
 * client that writes every second block of a large disk fills a set: then its ranges are cut to whole blocks of a
 * larger size, until half of the room is free. All sets of the process share a limit of memory.
 */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "api/durable.h"
#include "base/numbers.h"
#include "durable/ranges.h"

/* Ranges of a set that has any. They are not counted against the limit of all sets. */
#define FIRST_ROOM 64u

/* Ranges of all sets together, 64 MiB: 80 records whose sets are full, or many thousand usual ones. */
#define MOST_IN_ALL (IOU_DURABLE_RANGES * 256u)

/* The first size of blocks to which ranges are cut, in bytes. */
#define FIRST_BLOCK (8 * KIB)

/* Ranges that are added one by one. Each may move all of a set, 10 us; so many that 16,384 would take 0.2 s. */
#define FEW 16u

static atomic_uint_fast32_t in_all;

/* ---- room ------------------------------------------------------------------------------------------------------- */

static bool grow(struct ranges *set) {
    uint32_t room = set->room ? 2 * set->room : FIRST_ROOM;
    uint32_t more = set->room;
    if (room > IOU_DURABLE_RANGES || atomic_fetch_add(&in_all, more) + more > MOST_IN_ALL) {
        if (room <= IOU_DURABLE_RANGES)
            atomic_fetch_sub(&in_all, more);
        return false;
    }
    iou_range *all = realloc(set->all, room * sizeof(*all));
    if (!all) {
        atomic_fetch_sub(&in_all, more);
        return false;
    }
    set->all = all;
    set->room = room;
    return true;
}

/* Cut all ranges to whole blocks; ranges without a whole block are lost. */
static void cut_to_blocks(struct ranges *set, uint64_t block) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        uint64_t start = round_up(set->all[i].start, block), end = round_down(set->all[i].end, block);
        if (start < end)
            set->all[kept++] = (iou_range){start, end};
    }
    set->count = kept;
}

/* Make room for one more range. False: there is no memory at all. */
static bool make_room(struct ranges *set) {
    if (set->count < set->room || grow(set))
        return true;
    set->lost = true;
    for (uint64_t block = FIRST_BLOCK; set->count > set->room / 2; block *= 2)
        cut_to_blocks(set, block);
    return set->room > 0;
}

void ranges_free(struct ranges *set) {
    if (set->room)
        atomic_fetch_sub(&in_all, set->room - FIRST_ROOM);
    free(set->all);
    *set = (struct ranges){0};
}

/* ---- adding and taking away ------------------------------------------------------------------------------------- */

uint32_t ranges_behind(const struct ranges *set, uint64_t offset) {
    uint32_t low = 0, high = set->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (set->all[middle].end > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool ranges_overlap(const struct ranges *set, uint64_t start, uint64_t end) {
    uint32_t place = ranges_behind(set, start);
    return place < set->count && set->all[place].start < end;
}

/* Replace the ranges from first up to, not including, last by one. There is room. */
static void replace(struct ranges *set, uint32_t first, uint32_t last, iou_range range) {
    memmove(&set->all[first + 1], &set->all[last], (set->count - last) * sizeof(range));
    set->all[first] = range;
    set->count = set->count - (last - first) + 1;
}

void ranges_add(struct ranges *set, uint64_t start, uint64_t end) {
    if (start >= end)
        return;
    if (!make_room(set)) {
        set->lost = true;
        return;
    }
    uint32_t first = start ? ranges_behind(set, start - 1) : 0, last = first; /* those that touch it, too */
    while (last < set->count && set->all[last].start <= end)
        last++;
    if (first < last) {
        start = min_u64(start, set->all[first].start);
        end = max_u64(end, set->all[last - 1].end);
    }
    replace(set, first, last, (iou_range){start, end});
}

void ranges_remove(struct ranges *set, uint64_t start, uint64_t end) {
    if (start >= end || !ranges_overlap(set, start, end))
        return;
    make_room(set); /* the middle of a range leaves two; a set with ranges always gets room */
    uint32_t first = ranges_behind(set, start), last = first;
    if (first < set->count && set->all[first].start < start) {
        iou_range whole = set->all[first];
        set->all[first].end = min_u64(start, whole.end);
        last = ++first;
        if (whole.end > end)
            replace(set, first, last, (iou_range){end, whole.end});
    }
    while (last < set->count && set->all[last].end <= end)
        last++;
    if (last < set->count && set->all[last].start < end)
        set->all[last].start = end;
    memmove(&set->all[first], &set->all[last], (set->count - last) * sizeof(*set->all));
    set->count -= last - first;
}

static void add_all(struct ranges *set, const struct ranges *other) {
    for (uint32_t i = 0; i < other->count; i++)
        ranges_add(set, other->all[i].start, other->all[i].end);
}

/* Add the ranges of two sets to an empty one, in order, so that nothing is moved. */
static void merge(struct ranges *set, const struct ranges *a, const struct ranges *b) {
    for (uint32_t i = 0, j = 0; i < a->count || j < b->count;) {
        bool from_b = i == a->count || (j < b->count && b->all[j].start < a->all[i].start);
        const iou_range *next = from_b ? &b->all[j++] : &a->all[i++];
        ranges_add(set, next->start, next->end);
    }
}

void ranges_join(struct ranges *set, const struct ranges *other) {
    if (other->count <= FEW)
        return add_all(set, other);
    struct ranges merged = {.lost = set->lost};
    merge(&merged, set, other);
    ranges_free(set);
    *set = merged;
}

void ranges_move(struct ranges *from, struct ranges *to) {
    *to = *from;
    *from = (struct ranges){.lost = from->lost};
}

void ranges_cut(struct ranges *from, uint64_t start, uint64_t end, struct ranges *to) {
    for (uint32_t i = ranges_behind(from, start); i < from->count && from->all[i].start < end; i++)
        ranges_add(to, max_u64(start, from->all[i].start), min_u64(end, from->all[i].end));
    ranges_remove(from, start, end);
}
