/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The zeroing policy: which method is tried in which order, on files and on devices, and the limits of a fast request;
 * and trimming. README.md has the table and its reasons; the rows below are the table.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/falloc.h>

#include "base/numbers.h"
#include "image/io.h"

/* ---- the table -------------------------------------------------------------------------------------------------- */

/* Methods in the order in which they are tried; the rows end with NONE. fast: those that never move data. */
struct methods_in_order {
    iou_method all[IOU_METHODS];
    iou_method fast[IOU_METHODS];
};

enum { MAY_FREE, KEEP_ALLOCATED };

static const struct methods_in_order FILES[] = {
    [MAY_FREE] =
        {
            .all = {IOU_METHOD_PUNCH_HOLE, IOU_METHOD_ZERO_RANGE, IOU_METHOD_WRITE},
            .fast = {IOU_METHOD_PUNCH_HOLE, IOU_METHOD_ZERO_RANGE},
        },
    [KEEP_ALLOCATED] =
        {
            .all = {IOU_METHOD_ZERO_RANGE, IOU_METHOD_PUNCH_AND_ALLOCATE, IOU_METHOD_ALLOCATE, IOU_METHOD_WRITE},
            .fast = {IOU_METHOD_ZERO_RANGE, IOU_METHOD_PUNCH_AND_ALLOCATE, IOU_METHOD_ALLOCATE},
        },
};

/* On a device the kernel may write zeros for all but PUNCH_HOLE: correct, but not fast. */
static const struct methods_in_order DEVICES[] = {
    [MAY_FREE] =
        {
            .all = {IOU_METHOD_PUNCH_HOLE, IOU_METHOD_ZERO_RANGE, IOU_METHOD_BLKZEROOUT, IOU_METHOD_WRITE},
            .fast = {IOU_METHOD_PUNCH_HOLE},
        },
    [KEEP_ALLOCATED] =
        {
            .all = {IOU_METHOD_ZERO_RANGE, IOU_METHOD_BLKZEROOUT, IOU_METHOD_WRITE},
            .fast = {IOU_METHOD_NONE},
        },
};

static bool has_usable(const struct zeroing *z) {
    for (const iou_method *method = z->methods; *method != IOU_METHOD_NONE; method++)
        if (zero_is_usable(z, *method))
            return true;
    return false;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

/* Zero with the first method that works. */
static int zero_step(struct zeroing *z, uint64_t offset, uint64_t length) {
    int error = -EOPNOTSUPP;
    for (const iou_method *method = z->methods; *method != IOU_METHOD_NONE; method++) {
        if (!zero_is_usable(z, *method))
            continue;
        error = zero_apply(z, *method, offset, length);
        if (!error)
            return 0;
        if (zero_is_refused(z->op, error) && *method != IOU_METHOD_WRITE)
            z->skipped |= 1u << *method;
        else if (!zero_is_unsupported(error) || *method == IOU_METHOD_WRITE)
            return error;
    }
    /* Only a fast request gets here. ENOTSUP promises that nothing was changed. */
    if (!z->changed)
        return -EOPNOTSUPP;
    return zero_is_unsupported(error) ? -EIO : error;
}

/* Zero up to the end, or until the turn is over. */
static int zero_steps(struct zeroing *z, uint64_t end) {
    for (uint64_t start; (start = op_position(z->op)) < end;) {
        if (op_canceled(z->op))
            return op_fail(z->op, IOU_SYS_NONE, ECANCELED);
        int error = zero_step(z, start, zero_step_end(z, start, end) - start);
        if (error || op_turn_is_over(z->op))
            return error;
    }
    return 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

/*
 * A fast request must not extend the file and then find out that it is not fast. So its first step is done before, with
 * calls that keep the size.
 */
static int first_fast_step(struct zeroing *z, uint64_t start, uint64_t end) {
    z->grow_later = FALLOC_FL_KEEP_SIZE;
    int error = zero_step(z, start, zero_step_end(z, start, end) - start);
    z->grow_later = 0;
    return error;
}

static int begin_file(struct zeroing *z, uint64_t start, uint64_t end) {
    struct image *image = z->op->handle->image;
    uint64_t size;
    pthread_mutex_lock(&image->size_lock);
    int error = size_refresh(z->op, z->op->handle, &size);
    if (!error && end > size) {
        z->past_eof = start >= size;
        if (z->fast_only)
            error = first_fast_step(z, start, end);
        if (!error)
            error = size_extend_locked(z->op, end);
    }
    pthread_mutex_unlock(&image->size_lock);
    return error;
}

/* ---- devices ---------------------------------------------------------------------------------------------------- */

/* The methods of the table are for whole blocks. The parts of blocks before head_of() and behind tail_of() are
   written. */
static uint64_t head_of(const struct op *op) {
    return min_u64(round_up(op->offset, op->handle->block_size), op->offset + op->length);
}

static uint64_t tail_of(const struct op *op) {
    return max_u64(round_down(op->offset + op->length, op->handle->block_size), head_of(op));
}

/*
 * A device may be made of several. If one zeroes its part and the next one refuses, the kernel reports the whole call
 * as not supported. So a fast request first zeroes one block: if this is refused, nothing was changed, and a later
 * refusal is a failure.
 */
static int first_fast_block(struct zeroing *z, uint64_t start) {
    return zero_step(z, start, z->op->handle->block_size);
}

static int begin_device(struct zeroing *z, uint64_t start, uint64_t end) {
    struct op *op = z->op;
    uint64_t head = head_of(op);
    bool parts = start < head || tail_of(op) < end;
    if (z->fast_only && parts)
        return op_fail(op, IOU_SYS_NONE, EOPNOTSUPP);
    int error = size_check_device(op, end);
    if (!error && start < head)
        error = io_write_range(op, NULL, start, head);
    if (!error && z->fast_only)
        error = first_fast_block(z, start);
    if (parts)
        zero_note_method(op, IOU_METHOD_WRITE);
    return error;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static int begin_zeroing(struct zeroing *z, struct op *op) {
    bool file = op->handle->image->type == IOU_FILE;
    const struct methods_in_order *methods =
        (file ? FILES : DEVICES) + (op->flags & IOU_ALLOCATE ? KEEP_ALLOCATED : MAY_FREE);
    *z = (struct zeroing){.op = op, .fast_only = op->flags & IOU_FAST_ONLY};
    z->methods = z->fast_only ? methods->fast : methods->all;
    z->past_eof = true; /* not known yet: refuse only if no method is usable either way */
    if (!has_usable(z))
        return op_fail(op, IOU_SYS_NONE, EOPNOTSUPP);
    z->past_eof = false;
    return (file ? begin_file : begin_device)(z, op->offset, op->offset + op->length);
}

int zero_run(struct op *op) {
    struct zeroing *z = &op->zeroing;
    uint64_t end = op->offset + op->length;
    uint64_t tail = op->handle->image->type == IOU_FILE ? end : tail_of(op);
    if (op->length == 0)
        return 0;
    int error = z->methods ? 0 : begin_zeroing(z, op);
    if (!error)
        error = zero_steps(z, tail);
    if (!error && tail < end && op_position(op) == tail)
        error = io_write_range(op, NULL, tail, end);
    return error;
}

/* ---- trim ------------------------------------------------------------------------------------------------------- */

/* Punch whole blocks. Blocks that cannot be freed are no error: trimming is a hint, and then counts as done. */
static int punch_steps(struct zeroing *z, uint64_t end) {
    struct op *op = z->op;
    for (uint64_t start; (start = op_position(op)) < end && zero_is_usable(z, IOU_METHOD_PUNCH_HOLE);) {
        if (op_canceled(op))
            return op_fail(op, IOU_SYS_NONE, ECANCELED);
        int error = zero_apply(z, IOU_METHOD_PUNCH_HOLE, start, zero_step_end(z, start, end) - start);
        if (zero_is_unsupported(error) || zero_is_refused(op, error))
            break;
        if (error)
            return error;
        if (op_position(op) < end && op_turn_is_over(op))
            return 0;
    }
    op->result.syscall = IOU_SYS_NONE;
    op_advance(op, op->length - op->result.done);
    return 0;
}

int zero_trim(struct op *op) {
    uint64_t size, block = op->handle->block_size;
    int error = size_refresh(op, op->handle, &size);
    if (error)
        return error;
    op->zeroing.op = op;
    if (op->result.done == 0) /* skip the first block if the range covers only a part of it */
        op_advance(op, min_u64(round_up(op->offset, block) - op->offset, op->length));
    return punch_steps(&op->zeroing, round_down(min_u64(op->offset + op->length, size), block));
}
