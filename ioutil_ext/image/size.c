/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The size of an image. It only grows, and only here: before bytes past the end of a file are written or zeroed, the
 * file is extended with ftruncate, under the image's size lock and after a fresh fstat. With an fstat outside of the
 * lock, ftruncate would cut off bytes that another thread has written past the end in between. All data is written
 * inside of the size, so no other call changes it.
 */

#include <errno.h>

#include "base/syscalls.h"
#include "image/io.h"

static void raise_size(struct image *image, uint64_t size) {
    uint_fast64_t known = image->size;
    while (known < size && !atomic_compare_exchange_weak(&image->size, &known, size))
        ;
}

int size_refresh(struct op *op, iou_handle *handle, uint64_t *size) {
    struct image *image = handle->image;
    int error = sys_size(handle->fd, size);
    if (error < 0)
        return op_fail(op, image->type == IOU_FILE ? IOU_SYS_FSTAT : IOU_SYS_IOCTL, error);
    raise_size(image, *size);
    return 0;
}

int size_extend_locked(struct op *op, uint64_t end) {
    int error = sys_ftruncate(op->handle->fd, end);
    if (error < 0)
        return op_fail(op, IOU_SYS_FTRUNCATE, error);
    raise_size(op->handle->image, end);
    return 0;
}

int size_reach(struct op *op, uint64_t end) {
    struct image *image = op->handle->image;
    uint64_t size;
    if (end <= image->size)
        return 0;
    pthread_mutex_lock(&image->size_lock);
    int error = size_refresh(op, op->handle, &size);
    if (!error && end > size)
        error = size_extend_locked(op, end);
    pthread_mutex_unlock(&image->size_lock);
    return error;
}

int size_ends(struct op *op, uint64_t size) {
    op->result.size = size;
    return op_fail(op, IOU_SYS_NONE, ENODATA);
}

int size_check_device(struct op *op, uint64_t end) {
    uint64_t size;
    if (end <= op->handle->image->size)
        return 0;
    int error = size_refresh(op, op->handle, &size);
    if (!error && end > size)
        error = op_fail(op, IOU_SYS_NONE, ENOSPC);
    return error;
}
