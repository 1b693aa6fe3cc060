/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A whole cluster is zeroed by its entry, and its old cluster is freed by the next flush. A part of one, or a range
 * that has to be allocated, is zeroed by the raw engine. A range that reads as zeros already is left alone, unless it
 * has to be allocated.
 */

#include "base/numbers.h"
#include "qcow2/image.h"
#include "qcow2/map.h"

struct range_of {
    struct chain *chain;
    struct qcow2 *q;
    struct op *op;
    uint64_t pos, length;
    bool trim;
};

/* Whether the range covers its first cluster, up to the end of the disk. */
static bool is_cluster_whole(const struct range_of *range) {
    uint64_t start = round_down(range->pos, range->q->cluster);
    uint64_t end = min_u64(start + range->q->cluster, range->chain->image.size);
    return range->pos == start && range->pos + range->length >= end;
}

/* ---- by entries; the lock is held ------------------------------------------------------------------------------- */

/* Whether a cluster that is not allocated stays so: no file below can have it, or the range is only to be trimmed. */
static bool may_stay(const struct range_of *range) {
    return range->trim || !range->chain->over_backing;
}

/* Return the entry for zeros that replaces an entry. */
static uint64_t zero_entry(const struct range_of *range, const struct mapping *mapping) {
    if (range->q->header.version < 3)
        return 0;
    return mapping->kind == KIND_UNALLOCATED && may_stay(range) ? mapping->entry : ENTRY_ZERO;
}

/* Change the entries of a slice, as far as clusters are whole. Returns the bytes. */
static int64_t unlink_entries(struct range_of *range, struct slice *slice) {
    struct qcow2 *q = range->q;
    uint64_t number = range->pos >> q->cluster_bits, end = range->pos + range->length, rest = map_slice_rest(q, number);
    uint64_t last = end == range->chain->image.size ? divide_up(end, q->cluster) : end >> q->cluster_bits;
    uint64_t stop = min_u64(last, number + rest);
    struct mapping mapping;
    for (; number < stop; number++) {
        int error = map_entry(q, range->op, map_get(q, slice, number), &mapping);
        if (error)
            return error;
        uint64_t entry = zero_entry(range, &mapping);
        if (entry == mapping.entry)
            continue;
        map_put(q, slice, number, entry);
        link_drop(q, mapping.entry);
    }
    return (int64_t)(min_u64(stop << q->cluster_bits, end) - range->pos);
}

/* Zero the whole clusters from the beginning on, as far as one slice goes. */
static int64_t unlink_whole(struct range_of *range) {
    struct qcow2 *q = range->q;
    uint64_t number = range->pos >> q->cluster_bits;
    struct mapping mapping;
    struct slice *slice;
    int64_t done = 0;
    pthread_mutex_lock(&q->lock);
    if (!map_l1(q, number) && may_stay(range)) {
        done = map_find(q, range->op, range->pos, range->length, &mapping);
        done = done ? done : (int64_t)mapping.length;
    } else {
        done = link_need_table(q, range->op, number);
        if (!done)
            done = map_slice(q, range->op, number, &slice);
        if (!done) {
            done = unlink_entries(range, slice);
            cache_put(slice);
        }
    }
    pthread_mutex_unlock(&q->lock);
    return done;
}

/* ---- parts of clusters ------------------------------------------------------------------------------------------ */

static int64_t write_cluster_zeros(struct range_of *range, uint64_t length, uint32_t flags) {
    struct write write = {.chain = range->chain, .q = range->q, .op = range->op, .flags = flags & IOU_FAST_ONLY};
    write.pos = range->pos;
    write.length = length;
    return write_step(&write);
}

/* Zero a part of a cluster, at most to its end. */
static int64_t zero_part(struct range_of *range, uint32_t flags) {
    uint64_t length = min_u64(range->length, range->q->cluster - (range->pos & (range->q->cluster - 1)));
    struct run run;
    bool zero;
    int error = chain_find(range->chain, range->op, 0, range->pos, length, &run);
    if (error)
        return error;
    zero = run.mapping.kind == KIND_ZERO || run.mapping.kind == KIND_UNALLOCATED;
    chain_leave(range->chain, &run);
    return zero ? (int64_t)run.mapping.length : write_cluster_zeros(range, run.mapping.length, flags);
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

int64_t zero_some(struct chain *chain, struct op *op, uint64_t pos, uint64_t length, uint32_t flags) {
    struct range_of range = {.chain = chain, .q = chain->levels[0].format, .op = op, .pos = pos, .length = length};
    if (flags & IOU_ALLOCATE)
        return write_cluster_zeros(&range, length, flags);
    return is_cluster_whole(&range) ? unlink_whole(&range) : zero_part(&range, flags);
}

int64_t zero_trim_some(struct chain *chain, struct op *op, uint64_t pos, uint64_t length) {
    struct range_of range = {.chain = chain, .q = chain->levels[0].format, .op = op, .pos = pos, .length = length};
    range.trim = true;
    if (is_cluster_whole(&range))
        return unlink_whole(&range);
    return (int64_t)min_u64(length, range.q->cluster - (pos & (range.q->cluster - 1)));
}
