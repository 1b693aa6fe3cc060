/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdlib.h>

#include "qcow2/grace.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"
#include "qcow2/space.h"

/* ---- L2 tables -------------------------------------------------------------------------------------------------- */

/* The lock is held, and released for a while. */
static int copy_table(struct qcow2 *q, struct op *op, uint64_t from, uint64_t to) {
    void *table;
    if (posix_memalign(&table, PAGE_UNIT, q->cluster))
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    pthread_mutex_unlock(&q->lock);
    int error = layer_read(op, q->file, table, from, q->cluster);
    if (!error)
        error = layer_write(op, q->file, table, to, q->cluster);
    pthread_mutex_lock(&q->lock);
    free(table);
    return error;
}

/* Write the new table, on which the next flush relies: zeros with space, or a copy of the table that a snapshot shares,
   with unchanged marks. The slices in memory stay valid. */
static int fill_table(struct qcow2 *q, struct op *op, uint64_t old, const struct taken *taken) {
    return old ? copy_table(q, op, old, taken->first << q->cluster_bits) : space_zero(q, op, taken, 1);
}

/* The L1 table of a new image may be a hole, too. */
static int reserve_l1(struct qcow2 *q, struct op *op) {
    if (q->l1_reserved || q->file->image->type != IOU_FILE)
        return 0;
    pthread_mutex_unlock(&q->lock);
    int error = layer_reserve(op, q->file, q->header.l1_offset, 8 * (uint64_t)q->header.l1_size);
    pthread_mutex_lock(&q->lock);
    q->l1_reserved |= !error;
    return error;
}

static int make_table(struct qcow2 *q, struct op *op, uint64_t index) {
    uint64_t old = be64toh(q->l1[index]) & ENTRY_OFFSET;
    struct taken taken;
    int error = reserve_l1(q, op);
    if (!error)
        error = space_take(q, op, 1, old ? WANT_ANY : WANT_ZEROS, &taken);
    if (error)
        return error;
    error = fill_table(q, op, old, &taken);
    if (error) {
        space_give_back(q, op, &taken, true);
        return error;
    }
    q->l1[index] = htobe64(taken.first << q->cluster_bits | ENTRY_COPIED);
    bits_set(&q->l1_dirty, index / 64);
    if (old)
        frees_add(&q->unlinked, old >> q->cluster_bits, 1);
    return 0;
}

int link_need_table(struct qcow2 *q, struct op *op, uint64_t number) {
    uint64_t index = number >> q->table_bits;
    struct busy busy;
    while (!(map_l1(q, number) & ENTRY_COPIED)) {
        if (!busy_enter(q, &busy, BUSY_TABLES + index, BUSY_TABLES + index + 1))
            continue;
        int error = make_table(q, op, index);
        busy_leave(q, &busy);
        if (error)
            return error;
    }
    return 0;
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */

void link_drop(struct qcow2 *q, uint64_t entry) {
    uint64_t offset = entry & ENTRY_OFFSET, length = q->cluster;
    if (entry & ENTRY_COMPRESSED)
        length = map_compressed(q, entry, &offset);
    if (offset) {
        uint64_t first = offset >> q->cluster_bits, last = (offset + length - 1) >> q->cluster_bits;
        frees_add(&q->unlinked, first, last + 1 - first); /* all of them have counts, as the walk has checked */
    }
}

void link_taken(struct qcow2 *q, struct slice *slice, uint64_t number, const struct taken *taken) {
    for (uint64_t i = 0; i < taken->count; i++) {
        link_drop(q, map_get(q, slice, number + i));
        map_put(q, slice, number + i, (taken->first + i) << q->cluster_bits | ENTRY_COPIED);
    }
    q->counts.allocated += taken->count;
}
