/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of the guest's clusters: L1, L2, entries with and without subclusters. */

#include <errno.h>

#include "base/numbers.h"
#include "image/io.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"

int map_corrupt(struct qcow2 *q, struct op *op) {
    q->counts.corrupt++;
    return op_fail(op, IOU_SYS_NONE, EIO);
}

/* Whether an offset is before the end of the file, which grows if another program writes to what is only read here. */
static bool is_before_end(const struct qcow2 *q, struct op *op, uint64_t offset) {
    uint64_t size;
    return offset < layer_size(q->file) || (!q->file->writable && !size_refresh(op, q->file, &size) && offset < size);
}

/* Whether a cluster at this offset begins inside of the file. */
static bool is_inside_map(const struct qcow2 *q, struct op *op, uint64_t offset) {
    return is_aligned(offset, q->cluster) && offset && is_before_end(q, op, offset);
}

int map_slice(struct qcow2 *q, struct op *op, uint64_t number, struct slice **slice) {
    uint64_t l1 = map_l1(q, number), table = l1 & ENTRY_OFFSET;
    uint64_t place = (number & ((UINT64_C(1) << q->table_bits) - 1)) << q->entry_bits;
    *slice = NULL;
    if (!l1)
        return 0;
    if (l1 & L1_RESERVED || !is_inside_map(q, op, table))
        return map_corrupt(q, op);
    uint64_t key = number >> (q->slice_bits - q->entry_bits);
    return cache_get(q, op, key, table + round_down(place, UINT64_C(1) << q->slice_bits), slice);
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */

static int compressed_entry(struct qcow2 *q, struct op *op, uint64_t entry, struct mapping *mapping) {
    uint64_t offset;
    map_compressed(q, entry, &offset);
    if (entry & ENTRY_COPIED || offset >= MAX_HOST || !is_before_end(q, op, offset))
        return map_corrupt(q, op);
    mapping->kind = KIND_COMPRESSED;
    return 0;
}

int map_entry(struct qcow2 *q, struct op *op, uint64_t entry, struct mapping *mapping) {
    uint64_t host = entry & ENTRY_OFFSET;
    bool zero = entry & ENTRY_ZERO, marks = q->header.version >= 3 && q->entry_bits == 3;
    *mapping = (struct mapping){.entry = entry, .host = host, .kind = KIND_UNALLOCATED};
    if (entry & ENTRY_COMPRESSED)
        return compressed_entry(q, op, entry, mapping);
    if (entry & L2_RESERVED || (zero && !marks) || (!host && entry & ENTRY_COPIED) ||
        (host && !is_inside_map(q, op, host)))
        return map_corrupt(q, op);
    if (zero)
        mapping->kind = KIND_ZERO;
    else if (host)
        mapping->kind = KIND_DATA;
    mapping->in_place = mapping->kind == KIND_DATA && entry & ENTRY_COPIED;
    return 0;
}

/* Get the mapping of one of the 32 subclusters of an extended entry. */
static int subcluster(struct qcow2 *q, struct op *op, const uint8_t *place, unsigned which, struct mapping *mapping) {
    uint64_t words = get64(place + 8);
    bool allocated = words >> which & 1, zero = words >> (32 + which) & 1;
    int error = map_entry(q, op, get64(place), mapping);
    if (error)
        return error;
    if (mapping->kind == KIND_COMPRESSED)
        return words ? map_corrupt(q, op) : 0;
    if (allocated && (zero || !mapping->host))
        return map_corrupt(q, op);
    mapping->kind = zero ? KIND_ZERO : allocated ? KIND_DATA : KIND_UNALLOCATED;
    mapping->in_place &= allocated;
    if (mapping->kind == KIND_DATA)
        mapping->host += which * (q->cluster / 32);
    return 0;
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */

/* Look at the unit that has pos: a cluster, or a subcluster. Its mapping is as if pos were its beginning. */
static int look_at(struct qcow2 *q, struct op *op, const struct slice *slice, uint64_t pos, struct mapping *mapping) {
    const uint8_t *place = map_place(q, slice, pos >> q->cluster_bits);
    if (q->entry_bits == 3)
        return map_entry(q, op, get64(place), mapping);
    return subcluster(q, op, place, (unsigned)((pos & (q->cluster - 1)) >> (q->cluster_bits - 5)), mapping);
}

static bool goes_on(const struct mapping *run, const struct mapping *next, uint64_t distance) {
    if (run->kind != next->kind || run->in_place != next->in_place || run->kind == KIND_COMPRESSED)
        return false;
    return run->kind != KIND_DATA || run->host + distance == next->host;
}

/* Find the run of units that begins with the one of pos, all of one slice. */
static int find_mapped_run(struct qcow2 *q, struct op *op, const struct slice *slice, uint64_t pos, uint64_t end,
                           struct mapping *run) {
    uint64_t unit = q->entry_bits == 3 ? q->cluster : q->cluster / 32, first = round_down(pos, unit), at = first + unit;
    int error = look_at(q, op, slice, pos, run);
    if (error)
        return error;
    if (run->kind == KIND_COMPRESSED)
        at = round_down(pos, q->cluster) + q->cluster;
    for (struct mapping next; at < end; at += unit)
        if (look_at(q, op, slice, at, &next) || !goes_on(run, &next, at - first))
            break;
    run->length = min_u64(at, end) - pos;
    if (run->kind == KIND_DATA)
        run->host += pos - first;
    return 0;
}

/* Most L1 entries without a table that are passed at a time. They take 20 us. */
#define MOST_GAPS 65536u

static uint64_t gap_length(const struct qcow2 *q, uint64_t pos, uint64_t length) {
    uint32_t bits = q->table_bits + q->cluster_bits;
    uint64_t first = pos >> bits, last = min_u64((pos + length - 1) >> bits, first + MOST_GAPS), at = first + 1;
    while (at <= last && !q->l1[at])
        at++;
    return min_u64(length, (at << bits) - pos);
}

int map_find(struct qcow2 *q, struct op *op, uint64_t pos, uint64_t length, struct mapping *mapping) {
    uint64_t number = pos >> q->cluster_bits;
    struct slice *slice;
    int error = map_slice(q, op, number, &slice);
    if (error)
        return error;
    if (!slice) {
        *mapping = (struct mapping){.kind = KIND_UNALLOCATED, .length = gap_length(q, pos, length)};
        return 0;
    }
    uint64_t rest = map_slice_rest(q, number) << q->cluster_bits;
    error = find_mapped_run(q, op, slice, pos, min_u64(pos + length, round_down(pos, q->cluster) + rest), mapping);
    cache_put(slice);
    return error;
}
