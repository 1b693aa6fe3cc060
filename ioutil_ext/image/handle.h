/* SPDX-License-Identifier: Apache-2.0 */

/* Handles: an open image each, with its descriptors and what they demand (handle.c, open.c). */

#ifndef IOUTIL_IMAGE_HANDLE_H
#define IOUTIL_IMAGE_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "image/image.h"
#include "image/operation.h"

struct iou_handle {
    const struct image_ops *ops;
    struct image *image;
    atomic_uint_fast32_t refs; /* the owner's, and one for each operation */
    atomic_bool closing;       /* IOU_CLOSE was accepted */
    uint32_t born;             /* fork generation */
    int fd;
    int tail_fd; /* buffered, for blocks that are not wholly inside a file; -1 unless writable, direct and a file */
    bool writable, direct;
    uint32_t unit;                /* offsets and lengths of calls are multiples: block_size; 1 if a file is buffered */
    uint32_t block_size;          /* a power of two; what the device or direct I/O demands of offsets and lengths */
    uint32_t mem_align;           /* at most block_size */
    uint32_t lock_unit;           /* what is covered in part is claimed in blocks of this size: at least a page */
    uint_fast32_t flush_failures; /* the image's, when this handle was opened */
    char *path;
    struct op closer; /* closes the descriptors on a worker when the last reference ends elsewhere */
};

/* Open op->path into op->result.handle (open.c). ops: what is done with such images. */
int handle_open(struct op *op, const struct image_ops *ops);

/* Find out whether all of a file is one hole, again and again until it is not: other processes write, too. */
void look_at_content(iou_handle *handle);

/*
 * Take a reference for an operation of this kind: a new one, or, for IOU_CLOSE, the owner's. -EBADF after IOU_CLOSE;
 * *last: then the caller has the last reference, as from handle_put(). -ECHILD. Given back by handle_put(); by
 * handle_untake() if the operation does not come to be, which returns as handle_put() does.
 */
int handle_take(iou_handle *handle, uint32_t kind, bool *last);
bool handle_untake(iou_handle *handle, uint32_t kind);

/*
 * End a reference. True: it is the last one of an open image, and stays, the caller's: who calls handle_end(), or lets
 * somebody else do IOU_CLOSE with the handle's closer.
 */
bool handle_put(iou_handle *handle);

/* Close the descriptors and leave the image. Blocks. Only when one reference is left. Once. */
void handle_close(iou_handle *handle);

/* Close if this is the last reference; the memory stays until handle_put(). */
void handle_close_if_last(iou_handle *handle);

/* Close, and end the last reference. Blocks. */
void handle_end(iou_handle *handle);

#endif
