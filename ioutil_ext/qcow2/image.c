/* SPDX-License-Identifier: Apache-2.0 */

/* Operations on the guest's disk, in turns, as those on files (image/io.c, image/zero.c). */

#include <errno.h>

#include "base/numbers.h"
#include "base/syscalls.h"
#include "image/io.h"
#include "qcow2/image.h"
#include "qcow2/layer.h"
#include "qcow2/open.h"

/* Most bytes of a run that are read between two checks for cancellation. */
#define MOST_READ (8 * MIB)

static struct qcow2 *top_of(const struct op *op) {
    return chain_of(op->handle)->levels[0].format;
}

/* ---- the order of changes --------------------------------------------------------------------------------------- */

/* The exact range: blocks and pages that clusters share are claimed in the file (layer.c). */
static int claim(struct op *op) {
    return claim_range(op, (struct range){op->offset, op->offset + op->length});
}

/* ---- turns ------------------------------------------------------------------------------------------------------ */

/* One step from `start` on, which is not the end. Returns the bytes, or -errno. */
typedef int64_t step(struct op *op, uint64_t start, uint64_t length);

/* Step by step to the end, or until the turn is over. `end`: of the turn. */
static int run_steps(struct op *op, step *step, uint64_t end) {
    for (uint64_t start; (start = op_position(op)) < end;) {
        if (op_canceled(op))
            return op_fail(op, IOU_SYS_NONE, ECANCELED);
        int64_t done = step(op, start, end - start);
        if (done < 0)
            return (int)done;
        op_advance(op, (uint64_t)done);
        if (op_turn_is_over(op))
            break;
    }
    return 0;
}

static bool is_past_end(const struct op *op) {
    return op->offset + op->length > op->handle->image->size;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static int64_t read_some(struct op *op, uint64_t start, uint64_t length) {
    struct chain *chain = chain_of(op->handle);
    struct run run;
    int error = chain_find(chain, op, 0, start, min_u64(length, MOST_READ), &run);
    if (error)
        return error;
    error = chain_read_run(op, &run, (char *)op->buffer + (start - op->offset));
    chain_leave(chain, &run);
    return error ? error : (int64_t)run.mapping.length;
}

static int run_read(struct op *op) {
    return is_past_end(op) ? size_ends(op, op->handle->image->size) : run_steps(op, read_some, op->offset + op->length);
}

/* ---- changing --------------------------------------------------------------------------------------------------- */

static int64_t write_some(struct op *op, uint64_t start, uint64_t length) {
    struct chain *chain = chain_of(op->handle);
    struct write write = {.chain = chain, .q = top_of(op), .op = op, .pos = start, .length = length};
    write.data = (char *)op->buffer + (start - op->offset);
    return write_step(&write);
}

/* A fast request that has zeroed something continues as a slow one: it cannot fail with ENOTSUP any more, and only a
   part of a cluster is left to write. */
static int64_t zero_once(struct op *op, uint64_t start, uint64_t length) {
    uint32_t flags = op->result.done ? op->flags & ~(uint32_t)IOU_FAST_ONLY : op->flags;
    return zero_some(chain_of(op->handle), op, start, length, flags);
}

static int64_t change_once(struct op *op, uint64_t start, uint64_t length) {
    switch (op->kind) {
    case IOU_WRITE:
        return write_some(op, start, length);
    case IOU_ZERO:
        return zero_once(op, start, length);
    default:
        return zero_trim_some(chain_of(op->handle), op, start, length);
    }
}

/* Without space, wait and try again as long as clusters are being freed: another operation may have taken the first
   ones. */
static int64_t change_clusters(struct op *op, uint64_t start, uint64_t length) {
    struct qcow2 *q = top_of(op);
    int64_t done = change_once(op, start, length);
    for (bool waits = true; space_is_full(done) && waits && !op_canceled(op);) {
        waits = flush_reclaim(q, op);
        done = change_once(op, start, length);
    }
    if (space_is_full(done) && op_canceled(op))
        return op_fail(op, IOU_SYS_NONE, ECANCELED);
    int error = done < 0 ? 0 : flush_if_full(q, op);
    return error ? error : done;
}

static int run_change(struct op *op) {
    uint64_t end = op->offset + op->length, start = op_position(op);
    if (op->length && is_past_end(op))
        return op_fail(op, IOU_SYS_NONE, ENOSPC);
    return run_steps(op, change_clusters, op->most ? min_u64(start + op->most, end) : end);
}

/* If no call was needed, report the method that has the same effect as the change of tables. */
static int run_zero(struct op *op) {
    int error = run_change(op);
    if (!error && op->length && !op->result.method)
        op->result.method = op->flags & IOU_ALLOCATE ? IOU_METHOD_ALLOCATE : IOU_METHOD_PUNCH_HOLE;
    return error;
}

/* A range past the end of the disk counts as trimmed. */
static int run_trim(struct op *op) {
    uint64_t size = op->handle->image->size, end = op->offset + op->length;
    int error = run_steps(op, change_clusters, min_u64(end, size));
    if (!error && op_position(op) >= min_u64(end, size))
        op_advance(op, op->length - op->result.done);
    return error;
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

static int run_sync(struct op *op) {
    int error = io_check_flushes(op);
    return error || !op->handle->writable ? error : flush_run(top_of(op), op);
}

static int run_qcow2_stat(struct op *op) {
    if (op->flags & IOU_SPACE && sys_space(chain_of(op->handle)->levels[0].file->fd, &op->result.size) < 0)
        op->result.size = UINT64_MAX;
    return 0;
}

const struct image_ops QCOW2_IMAGE = {
    .claim = claim,
    .is_prompt = prompt_is,
    .run =
        {
            [IOU_STAT] = run_qcow2_stat,
            [IOU_READ] = run_read,
            [IOU_WRITE] = run_change,
            [IOU_ZERO] = run_zero,
            [IOU_TRIM] = run_trim,
            [IOU_FLUSH] = run_sync,
            [IOU_EXTENTS] = extents_of_chain,
        },
    .sync = run_sync,
    .close = close_chain,
};
