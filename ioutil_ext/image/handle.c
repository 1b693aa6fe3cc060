/* SPDX-License-Identifier: Apache-2.0 */

/* References to handles, and the properties of their images. */

#include <errno.h>
#include <stdlib.h>

#include "base/syscalls.h"
#include "image/handle.h"
#include "image/io.h"

static void close_file(iou_handle *handle) {
    sys_close(handle->fd);
    if (handle->tail_fd != -1)
        sys_close(handle->tail_fd);
    atomic_fetch_sub(handle->direct ? &handle->image->direct_handles : &handle->image->buffered_handles, 1);
    if (handle->writable)
        handle->image->writers--;
    locks_release(handle);
    pthread_mutex_destroy(&handle->syncing.lock);
    image_put(handle->image);
}

void handle_close(iou_handle *handle) {
    if (handle->ops->close)
        handle->ops->close(handle);
    else
        close_file(handle);
    handle->fd = -1;
    handle->image = NULL;
    iou_durable_release(handle->durable);
    handle->durable = NULL;
}

void handle_close_if_last(iou_handle *handle) {
    if (handle->refs == 1)
        handle_close(handle);
}

static void handle_free(iou_handle *handle) {
    if (handle->ops->free)
        handle->ops->free(handle);
    free(handle->path);
    free(handle);
}

bool handle_put(iou_handle *handle) {
    if (atomic_fetch_sub(&handle->refs, 1) > 1)
        return false;
    bool open = handle->fd != -1;
    if (open)
        handle->refs = 1; /* of the caller, which closes the image */
    else
        handle_free(handle);
    return open;
}

void handle_end(iou_handle *handle) {
    handle_close(handle);
    handle_free(handle);
}

/* Takes the reference before it checks `closing`: a close that runs now then does not see the last reference. */
int handle_take(iou_handle *handle, uint32_t kind, bool *last) {
    *last = false;
    if (handle_is_foreign(handle))
        return -ECHILD;
    if (kind == IOU_CLOSE)
        return atomic_exchange(&handle->closing, true) ? -EBADF : 0;
    handle->refs++;
    if (!handle->closing)
        return 0;
    *last = handle_put(handle);
    return -EBADF;
}

bool handle_untake(iou_handle *handle, uint32_t kind) {
    if (kind != IOU_CLOSE)
        return handle_put(handle);
    handle->closing = false;
    return false;
}

void iou_handle_info(iou_handle *handle, iou_info *info) {
    struct image *image = handle->image;
    *info = (iou_info){
        .size = image->size,
        .device = image->device,
        .inode = image->inode,
        .step = image->step,
        .type = image->type,
        .writable = handle->writable,
        .direct = handle->direct,
        .block_size = handle->block_size,
        .mem_align = handle->mem_align,
        .can_punch_hole = image->can[CAN_PUNCH_HOLE],
        .can_zero_range = image->can[CAN_ZERO_RANGE],
        .can_fallocate = image->can[CAN_FALLOCATE],
        .can_blkzeroout = image->can[CAN_BLKZEROOUT],
        .can_seek_hole = image->can[CAN_SEEK_HOLE],
        .reads_zero = image->content == CONTENT_ZERO,
        .flush_failed = image->flush_failures != handle->flush_failures,
        .locked = image->locked,
        .writers = (uint32_t)image->writers,
        .birth = handle->birth,
    };
}

int iou_handle_durable(iou_handle *handle, iou_durable *record) {
    if (handle->durable)
        return -EINVAL;
    iou_durable_retain(record);
    handle->durable = record;
    return 0;
}

uint64_t iou_handle_generation(iou_handle *handle) {
    uint64_t activity = handle->image->activity;
    return activity & WRITERS_MASK ? 0 : (activity >> WRITERS_BITS) + 1;
}
