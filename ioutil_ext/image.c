/* SPDX-License-Identifier: Apache-2.0 */

/* Images, one for each file or device in the process, and the handles that refer to them. */

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

/*
 * Bytes of the first call that zeroes; zero_methods.c adapts them. On a device the kernel may write them: eight such
 * calls at a time take 0.64 s at 200 MB/s. File systems change records.
 */
#define FIRST_FILE_STEP (128 * MIB)
#define FIRST_DEVICE_STEP (16 * MIB)

static struct image *registry;
/* Of all images that are gone: one that is opened again begins above it, or what was written meanwhile would not be
 * seen. */
static uint64_t last_generation;
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

void registry_prepare_fork(void) {
    pthread_mutex_lock(&registry_lock);
}

/* A child starts with none: threads that it does not have may hold the locks of its parent's images. */
void registry_after_fork(bool child) {
    if (child)
        registry = NULL;
    pthread_mutex_unlock(&registry_lock);
}

static struct image *image_new(iou_type type, dev_t device, ino_t inode) {
    struct image *image = calloc(1, sizeof(*image));
    if (!image)
        return NULL;
    image->type = type;
    image->device = device;
    image->inode = inode;
    pthread_mutex_init(&image->size_lock, NULL);
    claims_init(&image->claims);
    atomic_init(&image->step, type == IOU_FILE ? FIRST_FILE_STEP : FIRST_DEVICE_STEP);
    atomic_init(&image->can[CAN_PUNCH_HOLE], true);
    atomic_init(&image->can[CAN_ZERO_RANGE], true);
    atomic_init(&image->can[CAN_FALLOCATE], type == IOU_FILE);
    atomic_init(&image->can[CAN_BLKZEROOUT], type == IOU_BLOCK);
    atomic_init(&image->can[CAN_SEEK_HOLE], type == IOU_FILE);
    return image;
}

static void image_free(struct image *image) {
    pthread_mutex_destroy(&image->size_lock);
    claims_destroy(&image->claims);
    free(image);
}

struct image *image_get(iou_type type, dev_t device, ino_t inode) {
    pthread_mutex_lock(&registry_lock);
    struct image *image = registry;
    while (image && (image->type != type || image->device != device || image->inode != inode))
        image = image->next;
    if (!image && (image = image_new(type, device, inode))) {
        image->activity = (last_generation + 1) << WRITERS_BITS;
        image->next = registry;
        registry = image;
    }
    if (image)
        image->refs++;
    pthread_mutex_unlock(&registry_lock);
    return image;
}

void image_put(struct image *image) {
    pthread_mutex_lock(&registry_lock);
    bool last = --image->refs == 0;
    if (last) {
        struct image **where = &registry;
        while (*where != image)
            where = &(*where)->next;
        *where = image->next;
        last_generation = max_u64(last_generation, image->activity >> WRITERS_BITS);
    }
    pthread_mutex_unlock(&registry_lock);
    if (last)
        image_free(image);
}

/* ---- handles ---------------------------------------------------------------------------------------------------- */

void handle_close(iou_handle *handle) {
    sys_close(handle->fd);
    handle->fd = -1;
    if (handle->tail_fd != -1)
        sys_close(handle->tail_fd);
    atomic_fetch_sub(handle->direct ? &handle->image->direct_handles : &handle->image->buffered_handles, 1);
    image_put(handle->image);
    handle->image = NULL;
}

void handle_close_if_last(iou_handle *handle) {
    if (handle->refs == 1)
        handle_close(handle);
}

static void handle_free(iou_handle *handle) {
    free(handle->path);
    free(handle);
}

void handle_put(iou_handle *handle, struct iou_engine *engine) {
    if (atomic_fetch_sub(&handle->refs, 1) > 1)
        return;
    if (handle->fd != -1) {
        handle->refs = 1; /* the closer's */
        if (engine && engine_submit_closer(engine, handle))
            return;
        handle_close(handle);
    }
    handle_free(handle);
}

/* The reference comes first, so that a close that runs now does not take this for the last one. */
int handle_take(iou_handle *handle, uint32_t kind, struct iou_engine *engine) {
    if (handle->born != fork_generation())
        return -ECHILD;
    if (kind == IOU_CLOSE)
        return atomic_exchange(&handle->closing, true) ? -EBADF : 0;
    handle->refs++;
    if (!handle->closing)
        return 0;
    handle_put(handle, engine);
    return -EBADF;
}

void handle_untake(iou_handle *handle, uint32_t kind, struct iou_engine *engine) {
    if (kind == IOU_CLOSE)
        handle->closing = false;
    else
        handle_put(handle, engine);
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
    };
}

uint64_t iou_handle_generation(iou_handle *handle) {
    uint64_t activity = handle->image->activity;
    return activity & WRITERS_MASK ? 0 : (activity >> WRITERS_BITS) + 1;
}
