/* SPDX-License-Identifier: Apache-2.0 */

/* Operations: what is accepted, what they claim, and how they run from start to end. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MAX_OFFSET ((uint64_t)INT64_MAX)

static const uint32_t ALLOWED_FLAGS[] = {
    [IOU_OPEN] = IOU_WRITABLE | IOU_BUFFERED,
    [IOU_WRITE] = IOU_FUA,
    [IOU_ZERO] = IOU_FUA | IOU_ALLOCATE | IOU_FAST_ONLY,
    [IOU_TRIM] = IOU_FUA,
    [IOU_EXTENTS] = 0,
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
    if (!op->handle || op->length > MAX_OFFSET || op->offset > MAX_OFFSET - op->length || !has_buffer(op))
        return -EINVAL;
    if (changes_data(op->kind) && !op->handle->writable)
        return -EINVAL;
    return 0;
}

/* ---- claims ----------------------------------------------------------------------------------------------------- */

static void set_range(struct range *range, uint64_t start, uint64_t end) {
    range->start = start;
    range->end = end;
}

/*
 * The unit that the ends of a request must be aligned to, if it is to have no edges. Zeros and trims: file systems zero
 * parts of a page through the page cache. Writes: what does not fill a block is read-modify-write, but in a buffered
 * file, where the kernel merges. Whether the file is long enough for that block may change until the operation runs,
 * and does not matter: both ways of writing it are covered by the same edge.
 */
static uint64_t edge_unit(const struct op *op) {
    return op->kind == IOU_WRITE ? op->handle->unit : op->handle->lock_unit;
}

static void claim_edges(struct claim *claim, uint64_t unit, uint64_t lock_unit) {
    struct range *whole = &claim->whole;
    bool head = !is_aligned(whole->start, unit), tail = !is_aligned(whole->end, unit);
    if (head)
        whole->start = round_down(whole->start, lock_unit);
    if (tail)
        whole->end = round_up(whole->end, lock_unit);
    if (head)
        set_range(&claim->edges[0], whole->start, whole->start + lock_unit);
    if (tail)
        set_range(&claim->edges[1], whole->end - lock_unit, whole->end);
}

bool op_claims(const struct op *op) {
    return changes_data(op->kind) && op->length;
}

void op_make_claim(struct op *op) {
    const iou_handle *handle = op->handle;
    struct claim *claim = &op->claim;
    memset(claim, 0, sizeof(*claim));
    set_range(&claim->whole, op->offset, op->offset + op->length);
    if (!handle->direct && handle->image->direct_handles) {
        /* Pages dirtied under a direct write of the same page would undo it, so they keep all out. */
        claim->whole.start = round_down(claim->whole.start, handle->lock_unit);
        claim->whole.end = round_up(claim->whole.end, handle->lock_unit);
        claim->edges[0] = claim->whole;
    } else {
        claim_edges(claim, edge_unit(op), handle->lock_unit);
    }
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static int run_stat(struct op *op) {
    uint64_t size;
    int error = size_refresh(op, op->handle, &size);
    if (!error)
        look_at_content(op->handle);
    return error;
}

static int run_kind(struct op *op) {
    switch (op->kind) {
    case IOU_OPEN:
        return handle_open(op);
    case IOU_CLOSE:
        handle_close_if_last(op->handle);
        return 0;
    case IOU_STAT:
        return run_stat(op);
    case IOU_READ:
        return io_read(op);
    case IOU_WRITE:
        return io_write(op);
    case IOU_ZERO:
        return zero_run(op);
    case IOU_TRIM:
        return zero_trim(op);
    case IOU_FLUSH:
        return io_flush(op);
    default:
        return extents_run(op);
    }
}

/* What changes data is seen in the image's generation, and ends with a flush if asked for. */
static int run_change(struct op *op) {
    struct image *image = op->handle->image;
    image->activity += ((uint64_t)1 << WRITERS_BITS) + 1;
    if (op->kind == IOU_WRITE && op->length)
        image->content = CONTENT_WRITTEN;
    int error = run_kind(op);
    if (!error && op->flags & IOU_FUA)
        error = io_flush(op);
    image->activity += ((uint64_t)1 << WRITERS_BITS) - 1;
    return error;
}

void op_run(struct op *op) {
    int error;
    if (op->abandoned || op_canceled(op))
        error = op_fail(op, IOU_SYS_NONE, ECANCELED);
    else
        error = changes_data(op->kind) ? run_change(op) : run_kind(op);
    free(op->bounce);
    op->bounce = NULL;
    op->result.error = -error;
}

/* ---- in the caller's thread ------------------------------------------------------------------------------------- */

static int execute_open(struct op *op) {
    if (!op->buffer)
        return -EINVAL;
    op->path = op->buffer;
    op_run(op);
    return 0;
}

static int execute_on_handle(struct op *op) {
    iou_handle *handle = op->handle;
    int error = handle_take(handle, op->kind, NULL);
    if (error)
        return error;
    bool claims = op_claims(op);
    if (claims) {
        op_make_claim(op);
        if (!claim_take(handle->image, &op->claim))
            claim_wait(handle->image, &op->claim, NULL);
    }
    op_run(op);
    if (claims)
        claim_release(handle->image, &op->claim);
    handle_put(handle, NULL);
    return 0;
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
