/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The order in which clusters are taken. Free clusters between others come before those at the end of the file. The
 * file grows by zeros in large steps, so a cluster from there reads as zeros and can be linked before it is written.
 * Other clusters count as zeros only if they were holes at the open (walk.c), or were punched after their last use.
 *
 * A new block of reference counts lies in the range that it is for, so that its own count is in it, and is complete
 * before anything refers to it.
 */

#include <errno.h>

#include "base/numbers.h"
#include "qcow2/grace.h"
#include "qcow2/layer.h"
#include "qcow2/space.h"

/* Bytes that the file grows by: a quarter of what it has. 64 MiB at most: with 4 threads that write 64 KiB each, longer
   steps gained nothing. */
#define LEAST_STEP MIB
#define MOST_STEP (64 * MIB)

/* ---- growth ----------------------------------------------------------------------------------------------------- */

/* Unless `known`, the content behind the last used cluster of the file is unknown, and is cut off first. */
static int grow_file(struct qcow2 *q, struct op *op, uint64_t tail, uint64_t clusters, bool known, bool *reserved) {
    uint64_t start = tail << q->cluster_bits, size = layer_size(q->file), least = (tail + clusters) << q->cluster_bits;
    int error = known || size == start ? 0 : layer_set_size(op, q->file, start);
    if (error)
        return error;
    size = layer_size(q->file);
    uint64_t step = min_u64(max_u64(size / 4, LEAST_STEP), MOST_STEP);
    uint64_t end = max_u64(least, round_up(size + step, max_u64(q->cluster, LEAST_STEP)));
    if (end > MAX_HOST)
        return op_fail(op, IOU_SYS_NONE, EFBIG);
    error = layer_grow(op, q->file, end, reserved);
    if (space_is_full(error) && end > least)
        error = layer_grow(op, q->file, least, reserved);
    return error;
}

static int grow_clusters(struct qcow2 *q, struct op *op, uint64_t clusters) {
    struct space *space = &q->space;
    if (space->growing) {
        qcow2_await(q, &space->waiters);
        return 0;
    }
    if (q->file->image->type != IOU_FILE)
        return op_fail(op, IOU_SYS_NONE, ENOSPC);
    space->growing = true;
    uint64_t tail = space->tail;
    bool known = space->tail_zeros, reserved = !known || space->tail_reserved;
    pthread_mutex_unlock(&q->lock);
    int error = grow_file(q, op, tail, clusters, known, &reserved);
    pthread_mutex_lock(&q->lock);
    space->growing = false;
    uint64_t end = layer_size(q->file) >> q->cluster_bits;
    if (!error && (bits_reserve(&space->used, end) || bits_reserve(&space->zeros, end)))
        error = op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    if (!error) {
        space->end = end;
        space->tail_zeros = true;
        space->tail_reserved = reserved;
    }
    qcow2_wake(q, &space->waiters);
    return error;
}

/* ---- the choice ------------------------------------------------------------------------------------------------- */

static bool is_free(const struct space *space, uint64_t cluster, bool zeros) {
    return !bits_test(&space->used, cluster) && (!zeros || bits_test(&space->zeros, cluster));
}

/* Find free clusters before the tail. Words without a free one are passed over at once. */
static bool find_recycled(struct space *space, uint64_t count, enum wanted wanted, struct taken *taken) {
    bool zeros = wanted == WANT_ZEROS;
    if (wanted == WANT_TAIL || !(zeros ? space->recycled_zeros : space->recycled))
        return false;
    uint64_t at = space->hint < space->tail ? space->hint : 0;
    for (uint64_t seen = 0; seen <= space->tail; seen++, at++) {
        if (at >= space->tail)
            at = 0;
        if (at % 64 == 0 && space->used.words[at / 64] == UINT64_MAX) {
            seen += 63;
            at += 63;
            continue;
        }
        if (!is_free(space, at, zeros))
            continue;
        *taken = (struct taken){.first = at, .zeros = bits_test(&space->zeros, at)};
        while (taken->count < count && at < space->tail && is_free(space, at, taken->zeros)) {
            taken->count++;
            at++;
        }
        space->hint = at;
        return true;
    }
    return false;
}

/* Whether so many free clusters are not known to be zeros that the file must not grow for zeros. If all writes were
   parts of new clusters, these clusters would never be used. The rest of such a cluster is written. */
static bool has_waste(const struct qcow2 *q) {
    const struct space *space = &q->space;
    return (space->recycled - space->recycled_zeros) << q->cluster_bits > LEAST_STEP &&
           space->recycled - space->recycled_zeros > space->tail / 4;
}

bool space_has_zeros(const struct qcow2 *q) {
    const struct space *space = &q->space;
    return space->tail_zeros && space->tail + 2 <= space->end && (space->recycled_zeros || !has_waste(q));
}

/* Take clusters of one block of reference counts. -EAGAIN: the file has to grow. */
static int choose_clusters(struct qcow2 *q, uint64_t count, enum wanted wanted, struct taken *taken) {
    struct space *space = &q->space;
    bool file = q->file->image->type == IOU_FILE, recycled = find_recycled(space, count, wanted, taken);
    if (!recycled && wanted == WANT_ZEROS && has_waste(q))
        recycled = find_recycled(space, count, WANT_ANY, taken);
    if (!recycled) {
        if (space->tail + count > space->end || (file && !space->tail_zeros))
            return -EAGAIN;
        *taken = (struct taken){space->tail, count, space->tail_zeros, space->tail_reserved};
    }
    uint64_t rest = (((taken->first >> q->count_bits) + 1) << q->count_bits) - taken->first;
    taken->count = min_u64(taken->count, rest);
    for (uint64_t i = taken->first; i < taken->first + taken->count; i++) {
        bits_set(&space->used, i);
        space->recycled_zeros -= bits_clear(&space->zeros, i);
    }
    if (recycled)
        space->recycled -= taken->count;
    else
        space->tail += taken->count;
    return 0;
}

static int choose_or_grow(struct qcow2 *q, struct op *op, uint64_t count, enum wanted wanted, struct taken *taken) {
    int error = choose_clusters(q, count, wanted, taken);
    while (error == -EAGAIN) {
        error = grow_clusters(q, op, count);
        if (space_is_full(error) && wanted != WANT_TAIL && choose_clusters(q, 1, WANT_ANY, taken) == 0)
            return 0; /* the last free clusters, with any content */
        if (!error)
            error = choose_clusters(q, count, wanted, taken);
    }
    return error;
}

static void put_back(struct space *space, const struct taken *taken, bool zeros) {
    for (uint64_t i = taken->first; i < taken->first + taken->count; i++) {
        space->recycled += bits_clear(&space->used, i);
        if (zeros)
            space->recycled_zeros += bits_set(&space->zeros, i);
    }
    space->hint = min_u64(space->hint, taken->first);
}

/* ---- taking ----------------------------------------------------------------------------------------------------- */

int space_zero(struct qcow2 *q, struct op *op, const struct taken *taken, uint64_t count) {
    if (taken->reserved)
        return 0;
    pthread_mutex_unlock(&q->lock);
    int error = layer_zero(op, q->file, taken->first << q->cluster_bits, count << q->cluster_bits, IOU_ALLOCATE);
    pthread_mutex_lock(&q->lock);
    return error;
}

/* Make the first of chosen clusters a block, if their range has none yet. */
static int need_block(struct qcow2 *q, struct op *op, struct taken *taken) {
    if (refs_has_block(q, taken->first))
        return 0;
    int error = space_zero(q, op, taken, 1);
    if (error || refs_has_block(q, taken->first))
        return error;
    error = refs_add_block(q, op, taken->first);
    if (error)
        return error == -EEXIST ? 0 : error;
    taken->first++;
    taken->count--;
    return 0;
}

int space_take(struct qcow2 *q, struct op *op, uint64_t count, enum wanted wanted, struct taken *taken) {
    int error;
    do {
        error = choose_or_grow(q, op, count, wanted, taken);
        if (error)
            return error;
        error = need_block(q, op, taken);
        if (!error)
            error = refs_set(q, op, taken->first, taken->count, 1);
        if (error)
            put_back(&q->space, taken, false);
    } while (!error && !taken->count);
    return error;
}

void space_give_back(struct qcow2 *q, struct op *op, const struct taken *taken, bool written) {
    if (refs_set(q, op, taken->first, taken->count, 0) == 0)
        put_back(&q->space, taken, taken->zeros && !written);
}

void space_free(struct qcow2 *q, uint64_t first, uint64_t count, bool zeros) {
    struct taken taken = {.first = first, .count = count, .zeros = zeros};
    put_back(&q->space, &taken, zeros);
    q->counts.freed += count;
}

/* ---- the table of reference counts ------------------------------------------------------------------------------ */

/* Take consecutive clusters for it, from the tail, where the file can grow. */
static int take_row(struct qcow2 *q, struct op *op, uint64_t count, struct taken *row) {
    *row = (struct taken){0};
    while (row->count < count) {
        struct taken next;
        int error = space_take(q, op, count - row->count, WANT_TAIL, &next);
        if (!error && row->count && row->first + row->count != next.first) {
            space_give_back(q, op, row, false);
            row->count = 0;
        }
        if (error) {
            if (row->count)
                space_give_back(q, op, row, false);
            return error;
        }
        row->first = row->count ? row->first : next.first;
        row->count += next.count;
        row->zeros = next.zeros;
        row->reserved = next.reserved;
    }
    return 0;
}

/*
 * The new place has room for half as many entries again, and for those of the blocks that it needs itself. The old one
 * is freed when the header names the new one.
 */
int space_move_table(struct qcow2 *q, struct op *op) {
    struct taken row;
    uint64_t had = q->refcount_blocks;
    if (had <= q->refcount_room)
        return 0;
    uint64_t clusters = min_u64(divide_up(8 * (had + had / 2 + 8), q->cluster), space_longest_table(q));
    if (clusters << (q->cluster_bits - 3) < had)
        return op_fail(op, IOU_SYS_NONE, EFBIG); /* the limit of qemu; walk.c refuses images with a lower one */
    int error = take_row(q, op, clusters, &row);
    if (error)
        return error;
    error = space_zero(q, op, &row, row.count);
    if (error) {
        space_give_back(q, op, &row, true);
        return error;
    }
    frees_add(&q->unlinked, q->table_offset >> q->cluster_bits, q->table_clusters);
    q->table_offset = row.first << q->cluster_bits;
    q->table_clusters = row.count;
    q->refcount_room = row.count << (q->cluster_bits - 3);
    q->table_moved = true;
    return q->refcount_blocks <= q->refcount_room ? 0 : space_move_table(q, op);
}
