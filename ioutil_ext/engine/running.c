/* SPDX-License-Identifier: Apache-2.0 */

/* Operations on any image: their checks, and running them turn by turn. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "engine/running.h"
#include "qcow2/open.h"

static const uint32_t ALLOWED_FLAGS[] = {
    [IOU_OPEN] = IOU_WRITABLE | IOU_BUFFERED | IOU_SHARED,
    [IOU_STAT] = IOU_SPACE,
    [IOU_WRITE] = IOU_FUA,
    [IOU_ZERO] = IOU_FUA | IOU_ALLOCATE | IOU_FAST_ONLY,
    [IOU_TRIM] = IOU_FUA,
    [IOU_EXTENTS] = IOU_LAYERS | IOU_DIRTY | IOU_NOW,
    [IOU_READ] = IOU_WHOLE | IOU_DENSE | IOU_NOW,
};

static bool changes_data(uint32_t kind) {
    return kind == IOU_WRITE || kind == IOU_ZERO || kind == IOU_TRIM;
}

static bool has_buffer(const struct op *op) {
    switch (op->kind) {
    case IOU_READ:
    case IOU_WRITE: /* buffer_size may be left out */
        return op->length == 0 || (op->buffer && (op->buffer_size == 0 || op->buffer_size >= op->length));
    case IOU_EXTENTS:
        return op->length == 0 || (op->buffer && op->buffer_size >= sizeof(iou_extent));
    default:
        return true;
    }
}

int op_check(const struct op *op) {
    if (op->kind < IOU_OPEN || op->kind > IOU_EXTENTS || op->flags & ~ALLOWED_FLAGS[op->kind])
        return -EINVAL;
    if (op->kind == IOU_OPEN)
        return 0;
    if (!op->handle || !lies_in(op->offset, op->length, INT64_MAX) || !has_buffer(op))
        return -EINVAL;
    return changes_data(op->kind) && !op->handle->writable ? -EINVAL : 0;
}

/* ---- claims of changes ------------------------------------------------------------------------------------------ */

int op_claim(struct op *op) {
    if (!changes_data(op->kind) || op->claimed)
        return 0;
    if (op->claim.admitted)
        return op->handle->ops->claim(op);
    op->claim.admitted = claim_wake;
    op->claim.canceled = op->control ? &op->control->canceled : NULL;
    waiter_init(&op->waiter);
    int error = op->handle->ops->claim(op);
    if (error != -EAGAIN)
        waiter_end(&op->waiter);
    return error;
}

void op_await(struct op *op) {
    if (!op->waits)
        return;
    waiter_sleep(&op->waiter, FOR_EVER);
    op->waits = false;
    op->claimed = !op->claim.withdrawn;
}

void op_unclaim(struct op *op) {
    if (op->claimed)
        claim_release_operation(op);
    op->claimed = false;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Flush, and note in the record of durable ranges which changes the flush covers: all, or those of the operation's
   range. If only this flush fails, a later one covers them. */
static int flush_recorded(struct op *op) {
    iou_durable *record = op->handle->durable;
    iou_covered *covered = iou_durable_flush(record, op->offset, op->length);
    int error = op->handle->ops->run[IOU_FLUSH](op);
    iou_durable_flushed(record, covered, error && !op->flushes_fail ? ECANCELED : -error);
    return error;
}

static int run_kind(struct op *op) {
    switch (op->kind) {
    case IOU_OPEN:
        return op->chain ? qcow2_open(op) : handle_open(op, &FILE_IMAGE);
    case IOU_CLOSE:
        handle_close_if_last(op->handle);
        return 0;
    case IOU_FLUSH:
        return flush_recorded(op);
    default:
        return op->handle->ops->run[op->kind](op);
    }
}

/*
 * At the start of a change, remove its range from the durable ranges, and change the image's generation. end_running()
 * changes the generation again. If the journal contains the range, a thread that others need leaves the whole change to
 * a worker.
 */
static int begin_change(struct op *op) {
    struct image *image = op->handle->image;
    int (*take_out)(iou_durable *, uint64_t, uint64_t) =
        op->shares_thread ? iou_durable_try_change : iou_durable_change;
    int error = take_out(op->handle->durable, op->offset, op->length);
    op->needs_worker = op->shares_thread && error == -EAGAIN;
    if (error)
        return op->needs_worker ? 0 : op_fail(op, IOU_SYS_DURABLE, error);
    op->changes = true;
    image->activity += ((uint64_t)1 << WRITERS_BITS) + 1;
    if (op->kind == IOU_WRITE && op->length)
        image->content = CONTENT_WRITTEN;
    return 0;
}

/* Put a change with FUA on stable storage, and add its range to the record of durable ranges. error: of the change. */
static int end_change(struct op *op, int error) {
    bool fua = op->flags & IOU_FUA;
    if (!error && fua)
        error = op->handle->ops->sync(op);
    if (op->flushes_fail)
        iou_durable_flushed(op->handle->durable, NULL, EIO);
    if (!error && op->kind != IOU_TRIM)
        iou_durable_changed(op->handle->durable, op->offset, op->length, fua);
    return error;
}

/* Whether the operation is a flush or has FUA, and the journal is due. */
static bool has_journal(const struct op *op) {
    bool flushes = op->kind == IOU_FLUSH || (changes_data(op->kind) && op->flags & IOU_FUA);
    return flushes && iou_durable_is_due(op->handle->durable);
}

static void end_running(struct op *op, int error) {
    if (op->changes)
        op->handle->image->activity += ((uint64_t)1 << WRITERS_BITS) - 1;
    op->changes = false;
    free(op->bounce);
    op->bounce = NULL;
    op->result.error = -error;
}

/* Whether the operation is complete. Only reads and changes of data run in turns. */
static bool is_op_whole(const struct op *op) {
    return (op->kind != IOU_READ && !changes_data(op->kind)) || op->result.done == op->length;
}

/* Run an operation, except for the write of the journal. False: it has not ended. */
static bool run_but_journal(struct op *op, int *error) {
    if (changes_data(op->kind) && !op->changes)
        *error = begin_change(op);
    if (op->needs_worker)
        return false;
    if (!*error)
        *error = run_kind(op);
    if (!*error && !is_op_whole(op))
        return false;
    if (changes_data(op->kind))
        *error = end_change(op, *error);
    return true;
}

bool op_turn(struct op *op) {
    int error = 0;
    if (op->abandoned || op_canceled(op)) {
        op_end(op, ECANCELED);
        return true;
    }
    if (!op->is_done && !run_but_journal(op, &error))
        return false;
    op->is_done = true;
    if (!error && has_journal(op)) {
        op->needs_worker = op->shares_thread;
        if (op->needs_worker)
            return false;
        iou_durable_write(op->handle->durable);
    }
    end_running(op, error);
    return true;
}

void op_end(struct op *op, int error) {
    end_running(op, op_fail(op, IOU_SYS_NONE, error));
}

void op_describe(const struct op *op, uint64_t now, iou_running *record) {
    const char *path = op->handle ? op->handle->path : op->path;
    *record = (iou_running){
        .cookie = op->result.cookie,
        .offset = op->offset,
        .length = op->length,
        .elapsed = now > op->started_at ? now - op->started_at : 0,
        .kind = op->kind,
    };
    memcpy(record->path, path, strnlen(path, sizeof(record->path) - 1));
}

/* ---- in the caller's thread ------------------------------------------------------------------------------------- */

static int execute_open(struct op *op) {
    if (!op->buffer)
        return -EINVAL;
    op->path = op->buffer;
    op_turn(op);
    return 0;
}

static int execute_on_handle(struct op *op) {
    iou_handle *handle = op->handle;
    bool last;
    int error = handle_take(handle, op->kind, &last);
    if (last)
        handle_end(handle);
    if (error)
        return error;
    error = op_claim(op);
    if (error == -EAGAIN)
        error = 0;
    op_await(op);
    op->turn_end = UINT64_MAX; /* no other operation needs this thread */
    if (!error)
        op_turn(op);
    op_unclaim(op);
    if (handle_put(handle))
        handle_end(handle);
    return error;
}

int iou_open_qcow2(const iou_qcow2_chain *chain, uint32_t flags, iou_control *control, iou_completion *completion) {
    struct op op = {.kind = IOU_OPEN, .flags = flags, .chain = chain, .control = control};
    fork_watch();
    if (op_check(&op) || !qcow2_is_chain(chain))
        return -EINVAL;
    op.path = (char *)(uintptr_t)chain->layers[0].path;
    uint64_t start = now_ns();
    op_turn(&op);
    *completion = op.result;
    completion->elapsed = now_ns() - start;
    return -completion->error;
}

int iou_execute(iou_handle *handle, uint32_t kind, uint32_t flags, uint64_t offset, uint64_t length, void *buffer,
                uint64_t buffer_size, iou_control *control, iou_completion *completion) {
    struct op op = {
        .handle = handle,
        .kind = kind,
        .flags = flags,
        .offset = offset,
        .length = length,
        .buffer = buffer,
        .buffer_size = buffer_size,
        .control = kind == IOU_CLOSE ? NULL : control,
    };
    uint64_t start = now_ns();
    fork_watch();
    int error = op_check(&op);
    if (!error)
        error = kind == IOU_OPEN ? execute_open(&op) : execute_on_handle(&op);
    if (error)
        op.result.error = -error;
    op.result.elapsed = now_ns() - start;
    *completion = op.result;
    return -op.result.error;
}
