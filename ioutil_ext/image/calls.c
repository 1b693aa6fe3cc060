/* SPDX-License-Identifier: Apache-2.0 */

/* Reads and writes of images: asynchronous where the caller is a fiber, and storage can do it. */

#include <errno.h>

#include "base/aio.h"
#include "base/numbers.h"
#include "base/syscalls.h"
#include "image/io.h"

/*
 * Most bytes of an operation on a file in memory that a fiber runs itself. Pieces are shorter. To punch holes into 64
 * MiB, or to search them for data, takes longer.
 */
#define PROMPT (2 * MIB)

/* Whether the calls of a handle are asynchronous in a fiber: direct I/O of a device or of a file system on one. */
static bool is_asynchronous(const iou_handle *handle) {
    return handle->direct && !handle->image->in_memory && sys_is_real() && aio_is_possible();
}

bool io_is_prompt(const struct op *op) {
    const iou_handle *handle = op->handle;
    bool moves = op->kind == IOU_READ || op->kind == IOU_WRITE;
    if (handle->image->in_memory)
        return op->length <= PROMPT && sys_is_real();
    return moves && !(op->flags & IOU_FUA) && is_aligned(op->offset | op->length, handle->unit) &&
           is_aligned((uintptr_t)op->buffer, handle->mem_align) &&
           (op->kind == IOU_READ || op->offset + op->length <= handle->image->size) && is_asynchronous(handle);
}

/* The calls of an operation that is alone block the thread: each is one system call, an asynchronous one takes four. */
static bool is_begun(const struct op *op) {
    return !op->alone && is_asynchronous(op->handle);
}

ssize_t call_pread(const struct op *op, void *memory, size_t length, uint64_t offset) {
    ssize_t count = is_begun(op) ? aio_pread(op->handle->fd, memory, length, offset) : -ENOTSUP;
    return count == -ENOTSUP ? sys_pread(op->handle->fd, memory, length, offset) : count;
}

/* fd: of the handle, or its tail_fd, which is not direct. */
ssize_t call_pwrite(const struct op *op, int fd, const void *data, size_t length, uint64_t offset) {
    bool begins = fd == op->handle->fd && is_begun(op);
    ssize_t count = begins ? aio_pwrite(fd, data, length, offset) : -ENOTSUP;
    return count == -ENOTSUP ? sys_pwrite(fd, data, length, offset) : count;
}
