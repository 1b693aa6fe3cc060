/* SPDX-License-Identifier: Apache-2.0 */

/* Handles: each is an open image, with its descriptors and their alignment (handle.c, open.c). */

#ifndef IOUTIL_IMAGE_HANDLE_H
#define IOUTIL_IMAGE_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/durable.h"
#include "base/thread.h"
#include "image/image.h"
#include "image/operation.h"

/* Calls of fdatasync() on a handle, one at a time. */
struct syncing {
    pthread_mutex_t lock; /* a leaf, not held over the call */
    struct sharing calls;
};

struct iou_handle {
    const struct image_ops *ops;
    struct image *image;
    atomic_uint_fast32_t refs; /* the owner's, and one for each operation */
    atomic_bool closing;       /* IOU_CLOSE was accepted */
    uint32_t born;             /* fork generation */
    int fd;
    int tail_fd; /* buffered, for blocks that are only in part in a file; -1 unless writable, direct and a file */
    bool writable, direct;
    bool locks;          /* it holds the locks of the image (locks.c) */
    uint32_t unit;       /* calls have offsets and lengths of whole units: block_size, or 1 for a buffered file */
    uint32_t block_size; /* a power of two: the alignment that the device or direct I/O requires */
    uint32_t mem_align;  /* at most block_size */
    uint32_t lock_unit;  /* at least a page: claims of ranges with partial blocks are rounded to it */
    uint_fast32_t flush_failures; /* those of the image when this handle was opened */
    struct syncing syncing;       /* of a file or device */
    iou_birth birth;
    iou_durable *durable; /* the record of durable ranges, with a reference, or NULL */
    char *path;
    struct op closer; /* closes the descriptors on a worker if the last reference ends in another thread */
};

/* Whether this process is a forked child of the one that made the handle. */
static inline bool handle_is_foreign(const iou_handle *handle) {
    return handle->born != fork_generation();
}

/* A flag for an open of a file with a format. Then the file is locked even for reading, and only one handle may write
   to it. */
#define HANDLE_FORMAT (1u << 31)

/* Open op->path into op->result.handle (open.c). `ops` are the functions of the image. */
int handle_open(struct op *op, const struct image_ops *ops);

/* Check whether the whole file is one hole, because other processes may write to it. Does nothing if it was not one
   before. */
void look_at_content(iou_handle *handle);

/*
 * Take a reference for an operation of this kind: a new one, or for IOU_CLOSE that of the owner. Returns 0, -ECHILD, or
 * -EBADF after IOU_CLOSE; if *last is set then, the caller has the last reference, as from handle_put(). handle_put()
 * ends the reference. If the operation is not submitted, handle_untake() ends it, and returns as handle_put() does.
 */
int handle_take(iou_handle *handle, uint32_t kind, bool *last);
bool handle_untake(iou_handle *handle, uint32_t kind);

/* End a reference. Returns true if it is the last reference to an open image. Then the caller keeps it, and either
   calls handle_end() or submits IOU_CLOSE with the handle's closer. */
bool handle_put(iou_handle *handle);

/* Close the descriptors and release the image. Blocks. Call this once, when one reference is left. */
void handle_close(iou_handle *handle);

/* Close if one reference is left. The memory of the handle stays until handle_put(). */
void handle_close_if_last(iou_handle *handle);

/* Close, and end the last reference. Blocks. */
void handle_end(iou_handle *handle);

#endif
