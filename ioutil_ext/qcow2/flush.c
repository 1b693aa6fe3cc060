/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The order of a flush. At any instant, stable storage must have an image whose only fault may be clusters that are
 * counted and not used. So a flush copies all tables in memory at once, and writes the copy in this order:
 *
 *   1. new blocks of reference counts, of which each counts itself, and a longer table of blocks; barrier;
 *   2. reference counts and the table of blocks; barrier. This is also the barrier for data that was written, and for
 *      zeros by which the file has grown, before the copy;
 *   3. if the table of blocks has moved: the header; barrier;
 *   4. L2 tables and the L1 table; barrier. The flush is answered;
 *   5. clusters that the tables do not name any more: their counts are lowered in memory. When no operation uses them
 *      any more, they are punched, and can be taken again.
 *
 * In memory a cluster is counted before it is linked, so the copy counts each cluster that it links. A new L2 table or
 * block lies in a cluster of zeros, so it needs no first version in the file.
 */

#include "base/numbers.h"
#include "image/io.h"
#include "qcow2/grace.h"
#include "qcow2/image.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"
#include "qcow2/space.h"

/* Clusters that wait for a flush before they are free again, at most: of 64 KiB, 4 GiB. */
#define MOST_UNLINKED 65536u

/* Entries of a table that are written at a time: no loss of power tears a sector. */
#define SECTOR_ENTRIES (SECTOR / 8)

struct generation {
    struct output blocks, counts, tables;
    struct frees frees;
    bool moved;
    uint8_t group[TABLE_GROUP]; /* of the header */
};

/* ---- the copy; the lock is held --------------------------------------------------------------------------------- */

static int add_sectors(struct output *output, const uint64_t *table, struct bits *dirty, uint64_t entries,
                       uint64_t host) {
    int error = 0;
    for (uint64_t i = 0; !error && i * SECTOR_ENTRIES < entries; i++)
        if (bits_test(dirty, i))
            error = output_add(output, host + SECTOR * i, SECTOR, table + SECTOR_ENTRIES * i);
    return error;
}

static int add_counts(struct qcow2 *q, struct generation *g, const struct slice *slice) {
    uint64_t slices = UINT64_C(1) << (q->cluster_bits - q->slice_bits), number = slice->key & ~KEY_COUNTS;
    uint64_t block = number / slices, host = refs_block(q, block) + ((number % slices) << q->slice_bits);
    struct output *output = bits_test(&q->refcount_new, block) ? &g->blocks : &g->counts;
    return output_add(output, host, UINT64_C(1) << q->slice_bits, slice->data);
}

static int add_slice(struct qcow2 *q, struct generation *g, const struct slice *slice) {
    if (slice->key & KEY_COUNTS)
        return add_counts(q, g, slice);
    uint64_t first = slice->key << (q->slice_bits - q->entry_bits), table = map_l1(q, first) & ENTRY_OFFSET;
    uint64_t place = (first & ((UINT64_C(1) << q->table_bits) - 1)) << q->entry_bits;
    return output_add(&g->tables, table + place, UINT64_C(1) << q->slice_bits, slice->data);
}

static int add_table(struct qcow2 *q, struct generation *g) {
    if (!q->table_moved)
        return add_sectors(&g->counts, q->refcount_table, &q->refcount_dirty, q->refcount_blocks, q->table_offset);
    put64(g->group, q->table_offset);
    put32(g->group + 8, (uint32_t)q->table_clusters);
    g->moved = true;
    /* the rest of its clusters has zeros: they are of the part by which the file has grown, or were zeroed */
    return output_add(&g->blocks, q->table_offset, 8 * round_up(q->refcount_blocks, SECTOR_ENTRIES), q->refcount_table);
}

static int add_slices(struct qcow2 *q, struct generation *g) {
    int error = 0;
    for (struct link *node = q->cache.order.next; !error && node != &q->cache.order; node = node->next)
        if (container_of(node, struct slice, order)->dirty)
            error = add_slice(q, g, container_of(node, struct slice, order));
    return error;
}

static void clear_bits(struct bits *bits) {
    if (bits->words)
        memset(bits->words, 0, bits->room / 8);
}

static void forget_marks(struct qcow2 *q) {
    for (struct link *node = q->cache.order.next; node != &q->cache.order; node = node->next) {
        struct slice *slice = container_of(node, struct slice, order);
        slice->writing |= slice->dirty;
        slice->dirty = false;
    }
    q->cache.dirty = 0;
    clear_bits(&q->refcount_dirty);
    clear_bits(&q->refcount_new);
    clear_bits(&q->l1_dirty);
    q->table_moved = false;
}

/* Without memory, nothing changes. */
static int copy_generation(struct qcow2 *q, struct generation *g) {
    int error = add_slices(q, g);
    if (!error)
        error = add_table(q, g);
    if (!error)
        error = add_sectors(&g->tables, q->l1, &q->l1_dirty, q->header.l1_size, q->header.l1_offset);
    if (!error)
        error = output_copy(&g->blocks);
    if (!error)
        error = output_copy(&g->counts);
    if (!error)
        error = output_copy(&g->tables);
    if (error)
        return error;
    forget_marks(q);
    g->frees = q->unlinked;
    q->freeing += g->frees.clusters;
    q->unlinked = (struct frees){0};
    return 0;
}

/* ---- the writes; the lock is not held --------------------------------------------------------------------------- */

static int write_output(struct qcow2 *q, struct op *op, const struct output *output) {
    int error = output_write(output, q, op);
    return error ? error : layer_sync(op, q->file);
}

static int write_generation(struct qcow2 *q, struct op *op, const struct generation *g) {
    int error = g->blocks.count ? write_output(q, op, &g->blocks) : 0;
    if (!error)
        error = write_output(q, op, &g->counts);
    if (!error && g->moved)
        error = layer_write(op, q->file, g->group, TABLE_GROUP_AT, TABLE_GROUP);
    if (!error && g->moved)
        error = layer_sync(op, q->file);
    if (!error && g->tables.count)
        error = write_output(q, op, &g->tables);
    return error;
}

/* ---- frees ------------------------------------------------------------------------------------------------------ */

/* The lock is held, and released for a while. A count that cannot be read, or is wrong, stays: the cluster leaks. */
static void drop_counts(struct qcow2 *q, struct op *op, const struct frees *frees) {
    for (uint64_t n = 0; n < frees->count; n++) {
        const struct freed *freed = &frees->all[n];
        for (uint64_t i = freed->first; i < freed->first + freed->count; i++) {
            uint64_t left;
            if (refs_drop(q, op, i, &left) == 0 && left == 0)
                frees_add(&q->due, i, 1);
            q->freeing--;
        }
    }
}

static void punch(struct qcow2 *q, struct op *op, const struct freed *freed) {
    uint64_t offset = freed->first << q->cluster_bits, length = freed->count << q->cluster_bits;
    pthread_mutex_unlock(&q->lock);
    int error = layer_zero(op, q->file, offset, length, IOU_FAST_ONLY);
    pthread_mutex_lock(&q->lock);
    /* on a device, zeros may be in a cache that a loss of power empties */
    space_free(q, freed->first, freed->count, !error && q->file->image->type == IOU_FILE);
    q->freeing -= freed->count;
}

/* Free the clusters that no operation can use any more. Those that are due now wait for operations that have begun. The
   lock is held, and released for a while. */
static void reclaim(struct qcow2 *q, struct op *op) {
    for (unsigned turn = 0; turn < 2 && grace_is_over(q); turn++) {
        struct frees over = q->waiting;
        q->freeing += over.clusters;
        q->waiting = q->due;
        q->due = (struct frees){0};
        q->grace.phase ^= 1;
        for (uint64_t i = 0; i < over.count; i++)
            punch(q, op, &over.all[i]);
        frees_free(&over);
    }
    qcow2_wake(q, &q->grace.waiters);
}

/* ---- flushing --------------------------------------------------------------------------------------------------- */

static void finish_flush(struct qcow2 *q) {
    for (struct link *node = q->cache.order.next; node != &q->cache.order; node = node->next)
        container_of(node, struct slice, order)->writing = false;
    q->counts.flushes++;
}

/* Slices stay in memory if their copies may or may not be in the file. */
static void fail_flush(struct qcow2 *q, const struct op *op, int error) {
    q->flushing.error = error;
    q->flushing.call = (iou_syscall)op->result.syscall;
}

/* A failure before the copy has changed nothing. */
static int take_generation(struct qcow2 *q, struct op *op, struct generation *g) {
    int error = q->flushing.error ? q->flushing.error : space_move_table(q, op);
    if (!error && (error = copy_generation(q, g)))
        error = op_fail(op, IOU_SYS_MALLOC, error);
    return error;
}

static int put_generation(struct qcow2 *q, struct op *op, struct generation *g) {
    pthread_mutex_unlock(&q->lock);
    int error = write_generation(q, op, g);
    pthread_mutex_lock(&q->lock);
    if (error)
        fail_flush(q, op, error);
    else
        finish_flush(q);
    return error;
}

/* The flush has begun. */
static int flush_once(struct qcow2 *q, struct op *op) {
    struct generation g = {0};
    int error = take_generation(q, op, &g);
    bool nothing = error;
    if (!error)
        error = put_generation(q, op, &g);
    output_free(&g.blocks);
    output_free(&g.counts);
    output_free(&g.tables);
    sharing_end(&q->flushing.flushes, &q->lock, nothing);
    if (!error) {
        drop_counts(q, op, &g.frees);
        reclaim(q, op);
    } else if (g.frees.clusters) {      /* no needless wake-up: writes without space would wake each other */
        q->freeing -= g.frees.clusters; /* they leak */
        qcow2_wake(q, &q->grace.waiters);
    }
    frees_free(&g.frees);
    return error;
}

int flush_run(struct qcow2 *q, struct op *op) {
    struct sharing *flushes = &q->flushing.flushes;
    int error = 0;
    pthread_mutex_lock(&q->lock);
    for (uint64_t need = sharing_need(flushes); !error && sharing_begin(flushes, &q->lock, need);)
        error = flush_once(q, op);
    if (q->flushing.error)
        error = io_flush_failed(op, q->flushing.call, q->flushing.error);
    pthread_mutex_unlock(&q->lock);
    return error;
}

bool flush_reclaim(struct qcow2 *q, struct op *op) {
    pthread_mutex_lock(&q->lock);
    bool flushes = frees_pending(q) && (q->unlinked.clusters || q->flushing.flushes.running);
    pthread_mutex_unlock(&q->lock);
    if (flushes && flush_run(q, op) == 0)
        return true;
    pthread_mutex_lock(&q->lock);
    bool pending = q->freeing || q->due.clusters || q->waiting.clusters;
    if (pending && !q->freeing && grace_is_over(q))
        reclaim(q, op);
    else if (pending)
        qcow2_await(q, &q->grace.waiters);
    pthread_mutex_unlock(&q->lock);
    return pending;
}

int flush_if_full(struct qcow2 *q, struct op *op) {
    pthread_mutex_lock(&q->lock);
    bool full = q->cache.dirty >= q->cache.most / 4 || q->unlinked.clusters > MOST_UNLINKED;
    pthread_mutex_unlock(&q->lock);
    return full ? flush_run(q, op) : 0;
}
