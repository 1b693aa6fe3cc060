/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>

#include "base/numbers.h"
#include "qcow2/map.h"
#include "qcow2/space.h"

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

uint64_t refs_number(const uint8_t *data, uint64_t index, uint32_t order) {
    switch (order) {
    case 3:
        return data[index];
    case 4:
        return get16(data + 2 * index);
    case 5:
        return get32(data + 4 * index);
    case 6:
        return get64(data + 8 * index);
    default: {
        uint64_t bit = index << order;
        return (uint64_t)data[bit / 8] >> bit % 8 & ((1u << (1u << order)) - 1);
    }
    }
}

void refs_put_number(uint8_t *data, uint64_t index, uint32_t order, uint64_t value) {
    uint16_t half = htobe16((uint16_t)value);
    switch (order) {
    case 3:
        data[index] = (uint8_t)value;
        break;
    case 4:
        memcpy(data + 2 * index, &half, sizeof(half));
        break;
    case 5:
        put32(data + 4 * index, (uint32_t)value);
        break;
    case 6:
        put64(data + 8 * index, value);
        break;
    default: {
        uint64_t bit = index << order;
        unsigned mask = ((1u << (1u << order)) - 1) << bit % 8;
        data[bit / 8] = (uint8_t)((data[bit / 8] & ~mask) | (value << bit % 8 & mask));
    }
    }
}

/* ---- blocks ----------------------------------------------------------------------------------------------------- */

/* Make room in memory for more entries of the table; the file gets a longer table at the next flush (space.c). */
static int reserve_table(struct qcow2 *q, uint64_t entries) {
    uint64_t had = round_up(q->refcount_blocks, 64), room = round_up(entries, 64);
    if (bits_reserve(&q->refcount_dirty, room / 64) || bits_reserve(&q->refcount_new, room))
        return -ENOMEM;
    if (room > had) {
        uint64_t *table = realloc(q->refcount_table, room * sizeof(*table));
        if (!table)
            return -ENOMEM;
        memset(table + had, 0, (room - had) * sizeof(*table));
        q->refcount_table = table;
    }
    q->refcount_blocks = max_u64(q->refcount_blocks, entries);
    return 0;
}

/* ---- counts ----------------------------------------------------------------------------------------------------- */

static uint64_t per_slice(const struct qcow2 *q) {
    return UINT64_C(1) << (q->slice_bits + 3 - q->header.refcount_order);
}

/* block: where the block of the cluster is. */
static int get_slice_of(struct qcow2 *q, struct op *op, uint64_t cluster, uint64_t block, struct slice **slice) {
    uint64_t number = cluster / per_slice(q), slices = UINT64_C(1) << (q->cluster_bits - q->slice_bits);
    return cache_get(q, op, number | KEY_COUNTS, block + ((number & (slices - 1)) << q->slice_bits), slice);
}

static int get_slice(struct qcow2 *q, struct op *op, uint64_t cluster, struct slice **slice) {
    uint64_t block = refs_block(q, cluster >> q->count_bits);
    return block ? get_slice_of(q, op, cluster, block, slice) : map_corrupt(q, op);
}

/* The slice is made before the entry of the table, so a flush that sees the entry sees the count. Two threads that make
   a block for one range share one slice, of zeros. */
int refs_add_block(struct qcow2 *q, struct op *op, uint64_t cluster) {
    uint64_t index = cluster >> q->count_bits, host = cluster << q->cluster_bits;
    struct slice *slice;
    int error = get_slice_of(q, op, cluster, host, &slice);
    if (error)
        return error;
    cache_put(slice);
    if (refs_has_block(q, cluster))
        return -EEXIST;
    if (reserve_table(q, index + 1))
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    q->refcount_table[index] = htobe64(host);
    bits_set(&q->refcount_dirty, index / 64);
    bits_set(&q->refcount_new, index);
    refs_put_number(slice->data, cluster % per_slice(q), q->header.refcount_order, 1);
    cache_dirty(q, slice);
    return 0;
}

int refs_set(struct qcow2 *q, struct op *op, uint64_t first, uint64_t count, uint64_t value) {
    uint64_t end = first + count;
    while (first < end) {
        struct slice *slice;
        int error = get_slice(q, op, first, &slice);
        if (error)
            return error;
        uint64_t stop = min_u64(end, round_down(first, per_slice(q)) + per_slice(q));
        for (; first < stop; first++)
            refs_put_number(slice->data, first % per_slice(q), q->header.refcount_order, value);
        cache_dirty(q, slice);
        cache_put(slice);
    }
    return 0;
}

int refs_drop(struct qcow2 *q, struct op *op, uint64_t cluster, uint64_t *left) {
    struct slice *slice;
    int error = get_slice(q, op, cluster, &slice);
    if (error)
        return error;
    uint64_t index = cluster % per_slice(q), value = refs_number(slice->data, index, q->header.refcount_order);
    if (value) {
        refs_put_number(slice->data, index, q->header.refcount_order, value - 1);
        cache_dirty(q, slice);
    }
    cache_put(slice);
    *left = value - 1;
    return value ? 0 : map_corrupt(q, op);
}
