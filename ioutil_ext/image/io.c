/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reading and writing whole ranges. Direct I/O, and all I/O of a device, moves whole blocks. Unaligned memory goes
 * through a bounce buffer. A block that a write covers only in part is read, changed and written back under the
 * operation's claim, which includes the block (engine/running.c, admission.c).
 *
 * For a block that the end of the file cuts, the buffered descriptor writes exactly the bytes of the caller: a direct
 * write of the whole block would move the end of the file. The read before the write shows whether a block is cut: it
 * returns less than a full block. Files only grow, so a full block stays full.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "base/syscalls.h"
#include "image/io.h"

/*
 * Most bytes of one call: on a virtio disk, direct writes of 1 MiB take up to twice the processor time per byte of
 * those of 4 to 8 MiB. The operation checks for cancellation between calls.
 */
#define MAX_PIECE (8 * MIB)

/* Large enough that the copy, not the call, is the main cost of unaligned memory. */
#define BOUNCE_SIZE MIB

/* Most consecutive calls that move no bytes before the operation fails. */
#define MAX_STUCK 8

/* The source of zeros that are written. It is never written to, so it stays one shared page of the kernel. It is not
   const, so that it is in .bss. */
#define ZEROS_SIZE (4 * MIB)
static char zeros[ZEROS_SIZE] __attribute__((aligned(PAGE_UNIT)));

static int get_bounce(struct op *op, char **bounce) {
    void *memory;
    if (!op->bounce) {
        if (posix_memalign(&memory, max_u64(PAGE_UNIT, op->handle->mem_align), BOUNCE_SIZE))
            return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
        op->bounce = memory;
    }
    *bounce = op->bounce;
    return 0;
}

static int check_canceled(struct op *op) {
    return op_canceled(op) ? op_fail(op, IOU_SYS_NONE, ECANCELED) : 0;
}

/* Whether a call may be made with this memory at this offset. */
static bool fits_calls(const iou_handle *handle, const char *memory, uint64_t offset) {
    return is_aligned(offset, handle->unit) && is_aligned((uintptr_t)memory, handle->mem_align);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Check a read that got no new bytes: fail at the end of the image, otherwise let it be repeated a few times. */
static int check_stuck_read(struct op *op, uint64_t offset, unsigned *stuck) {
    uint64_t size;
    int error = size_refresh(op, op->handle, &size);
    if (error)
        return error;
    if (offset >= size)
        return size_ends(op, size);
    return ++*stuck > MAX_STUCK ? op_fail(op, IOU_SYS_PREAD, EIO) : 0;
}

/* Read length bytes, or at least `need` of them if the image ends in between. */
static int read_span(struct op *op, char *memory, uint64_t offset, uint64_t length, uint64_t need) {
    uint64_t got = 0;
    unsigned stuck = 0;
    while (got < need) {
        uint64_t base = round_down(got, op->handle->unit);
        ssize_t count = call_pread(op, memory + base, length - base, offset + base);
        if (count < 0)
            return op_fail(op, IOU_SYS_PREAD, (int)count);
        if (base + (uint64_t)count > got) {
            got = base + (uint64_t)count;
            continue;
        }
        int error = check_stuck_read(op, offset + got, &stuck);
        if (error)
            return error;
    }
    return 0;
}

/* Read blocks into the bounce buffer, and copy the bytes from start to *stop, which is at most end. */
static int read_bounced(struct op *op, char *target, uint64_t start, uint64_t end, uint64_t *stop) {
    uint64_t block = op->handle->unit;
    uint64_t first = round_down(start, block);
    uint64_t last = min_u64(round_up(end, block), first + BOUNCE_SIZE);
    char *bounce;
    /* If memory and offset have the same alignment, only the first block has to be copied. */
    uint64_t next = first + block;
    if (start > first && next < end && fits_calls(op->handle, target + (next - start), next))
        last = next;
    *stop = min_u64(last, end);
    int error = get_bounce(op, &bounce);
    if (!error)
        error = read_span(op, bounce, first, last - first, *stop - first);
    if (!error)
        memcpy(target, bounce + (start - first), *stop - start);
    return error;
}

static int read_piece(struct op *op, char *target, uint64_t start, uint64_t end, uint64_t *stop) {
    const iou_handle *handle = op->handle;
    uint64_t length = round_down(min_u64(end - start, MAX_PIECE), handle->unit);
    if (length == 0 || !fits_calls(handle, target, start))
        return read_bounced(op, target, start, end, stop);
    *stop = start + length;
    return read_span(op, target, start, length, length);
}

int io_read(struct op *op) {
    uint64_t start = op_position(op), end = op->offset + op->length, stop;
    char *buffer = op->buffer;
    for (; start < end; start = stop) {
        int error = check_canceled(op);
        if (!error)
            error = read_piece(op, buffer + (start - op->offset), start, end, &stop);
        if (error)
            return error;
        op_advance(op, stop - start);
        if (stop < end && op_turn_is_over(op))
            break;
    }
    return 0;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* Write all bytes, without counting progress. unit: a short write continues at a multiple of it. */
static int write_span(struct op *op, int fd, const char *data, uint64_t offset, uint64_t length, uint64_t unit) {
    uint64_t written = 0;
    unsigned stuck = 0;
    while (written < length) {
        ssize_t count = call_pwrite(op, fd, data + written, length - written, offset + written);
        if (count < 0)
            return op_fail(op, IOU_SYS_PWRITE, (int)count);
        /* A block of which a direct write has written a part is written again as a whole. */
        uint64_t whole = written + (uint64_t)count == length ? (uint64_t)count : round_down((uint64_t)count, unit);
        if (whole == 0 && ++stuck > MAX_STUCK)
            return op_fail(op, IOU_SYS_PWRITE, EIO);
        written += whole;
    }
    return 0;
}

/* Write from any memory, until the turn is over; start and end are multiples of the handle's unit. Counts progress. */
static int write_blocks(struct op *op, const char *data, uint64_t start, uint64_t end) {
    const iou_handle *handle = op->handle;
    bool bounced = data && !is_aligned((uintptr_t)data, handle->mem_align);
    uint64_t most = !data ? ZEROS_SIZE : bounced ? BOUNCE_SIZE : MAX_PIECE;
    char *bounce = NULL;
    int error = bounced ? get_bounce(op, &bounce) : 0;
    for (uint64_t length; !error && start < end; start += length) {
        length = min_u64(end - start, most);
        if ((error = check_canceled(op)))
            return error;
        if (bounced)
            memcpy(bounce, data, length);
        const char *source = bounced ? bounce : data ? data : zeros;
        if ((error = write_span(op, handle->fd, source, start, length, handle->unit)))
            return error;
        op_advance(op, length);
        data = data ? data + length : NULL;
        if (start + length < end && op_turn_is_over(op))
            return 0;
    }
    return error;
}

/* Read one block, up to the end of the image. Returns how many bytes it has, or -errno. */
static int64_t read_block(struct op *op, char *block, uint64_t offset) {
    uint64_t size = op->handle->unit, got = 0;
    while (got < size) {
        /* Direct I/O reads only whole blocks, so a short read is repeated from the start of the block. */
        ssize_t count = call_pread(op, block, size, offset);
        if (count < 0)
            return op_fail(op, IOU_SYS_PREAD, (int)count);
        if ((uint64_t)count <= got)
            break;
        got = (uint64_t)count;
    }
    return (int64_t)got;
}

/* Write start..end, a part of one block. No other change uses the block. Counts progress. */
static int write_edge(struct op *op, const char *data, uint64_t start, uint64_t end) {
    const iou_handle *handle = op->handle;
    uint64_t first = round_down(start, handle->unit);
    const char *source = data ? data : zeros;
    char *block;
    int error = get_bounce(op, &block);
    if (error)
        return error;
    int64_t got = read_block(op, block, first);
    if (got < 0)
        return (int)got;
    if (got == handle->unit) {
        memcpy(block + (start - first), source, end - start);
        error = write_span(op, handle->fd, block, first, handle->unit, handle->unit);
    } else if (handle->tail_fd != -1) {
        error = write_span(op, handle->tail_fd, source, start, end - start, 1);
    } else {
        error = op_fail(op, IOU_SYS_PREAD, EIO); /* a device that ends inside a block */
    }
    if (!error)
        op_advance(op, end - start);
    return error;
}

int io_write_range(struct op *op, const char *data, uint64_t start, uint64_t end) {
    uint64_t unit = op->handle->unit;
    uint64_t head = min_u64(round_up(start, unit), end); /* the first block starts here */
    uint64_t tail = max_u64(round_down(end, unit), head);
    int error = 0;
    if (start < head)
        error = write_edge(op, data, start, head);
    if (!error && head < tail)
        error = write_blocks(op, data ? data + (head - start) : NULL, head, tail);
    if (!error && tail < end && op_position(op) == tail)
        error = write_edge(op, data ? data + (tail - start) : NULL, tail, end);
    return error;
}

int io_write(struct op *op) {
    uint64_t start = op_position(op), end = op->offset + op->length;
    int error = 0;
    if (op->length) {
        error = check_canceled(op);
        if (!error)
            error = op->handle->image->type == IOU_FILE ? size_reach(op, end) : size_check_device(op, end);
        if (!error)
            error = io_write_range(op, (char *)op->buffer + op->result.done, start,
                                   op->most ? min_u64(round_down(start + op->most, PAGE_UNIT), end) : end);
    }
    return error;
}
