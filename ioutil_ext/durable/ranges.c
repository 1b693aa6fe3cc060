/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sets of bytes. Uploads add ranges that touch the one before, so a set mostly has one range for each connection. A
 * client that writes every second block of a large disk fills a set: then its ranges are cut to whole units of a larger
 * size, until half of the room is free.
 */

#include "durable/ranges.h"
#include "api/durable.h"
#include "base/numbers.h"

/* The first size of units to which ranges are cut, in bytes. */
#define FIRST_UNIT (8 * KIB)

/* Make room for more ranges. False: there is no memory at all. */
static bool make_set_room(struct ranges *set) {
    uint32_t used = set->used, half = set->count / 2;
    bool full = set->count == IOU_DURABLE_RANGES;
    blocks_cut(set, 1);
    if (!full && set->used <= used / 2)
        return used > 0;
    for (uint64_t unit = FIRST_UNIT; set->count > half; unit *= 2) {
        blocks_cut(set, unit);
        set->unit = unit;
    }
    return true;
}

void ranges_free(struct ranges *set) {
    blocks_erase(set, (struct place){0}, (struct place){set->used, 0});
    *set = (struct ranges){0};
}

/* Return the place of the first range that has a byte of start..end, or touches it, or lies behind it. */
static struct place touching(const struct ranges *set, uint64_t start) {
    return blocks_behind(set, start ? start - 1 : 0);
}

iou_range ranges_fit(const struct ranges *set, uint64_t start, uint64_t end) {
    const iou_range *range = set->unit ? blocks_at(set, touching(set, start)) : NULL;
    if (!set->unit || (range && range->start <= end))
        return (iou_range){start, end};
    return (iou_range){round_up(start, set->unit), round_down(end, set->unit)};
}

bool ranges_overlap(const struct ranges *set, uint64_t start, uint64_t end) {
    const iou_range *range = blocks_at(set, blocks_behind(set, start));
    return range && range->start < end;
}

/* Extend the range at a place by start..end, and merge all ranges behind it that it then touches. */
static void extend(struct ranges *set, struct place place, uint64_t start, uint64_t end) {
    iou_range *range = blocks_next(set, &place);
    range->start = min_u64(range->start, start);
    range->end = max_u64(range->end, end);
    struct place last = place;
    for (const iou_range *next; (next = blocks_at(set, last)) && next->start <= end; blocks_next(set, &last))
        range->end = max_u64(range->end, next->end);
    blocks_erase(set, place, last);
}

void ranges_add(struct ranges *set, uint64_t start, uint64_t end) {
    bool added = start >= end;
    while (!added) {
        struct place place = touching(set, start);
        const iou_range *range = blocks_at(set, place);
        if (range && range->start <= end) {
            extend(set, place, start, end);
            return;
        }
        added = blocks_insert(set, place, (iou_range){start, end});
        if (!added && !make_set_room(set)) {
            set->lost = true;
            return;
        }
    }
}

void ranges_remove(struct ranges *set, uint64_t start, uint64_t end) {
    struct place first = blocks_behind(set, start);
    iou_range *range = blocks_at(set, first);
    if (start >= end || !range || range->start >= end)
        return;
    uint64_t head = range->start;
    if (head < start && range->end > end) { /* the middle of a range leaves two */
        range->start = end;
        ranges_add(set, head, start);
        return;
    }
    if (head < start)
        blocks_next(set, &first)->end = start;
    struct place last = first;
    while ((range = blocks_at(set, last)) && range->end <= end)
        blocks_next(set, &last);
    if (range && range->start < end)
        range->start = end;
    blocks_erase(set, first, last);
    if (set->count == 0)
        set->unit = 0;
}

void ranges_join(struct ranges *set, const struct ranges *other) {
    struct place place = {0};
    for (const iou_range *range; (range = blocks_next(other, &place));)
        ranges_add(set, range->start, range->end);
}

void ranges_move(struct ranges *from, struct ranges *to) {
    *to = *from;
    *from = (struct ranges){.lost = from->lost};
}

void ranges_cut(struct ranges *from, uint64_t start, uint64_t end, struct ranges *to) {
    struct place place = blocks_behind(from, start);
    for (const iou_range *range; (range = blocks_next(from, &place)) && range->start < end;)
        ranges_add(to, max_u64(start, range->start), min_u64(end, range->end));
    ranges_remove(from, start, end);
}
