/* SPDX-License-Identifier: Apache-2.0 */

/* The size of an image (size.c). */

#ifndef IOUTIL_IMAGE_SIZE_H
#define IOUTIL_IMAGE_SIZE_H

#include <stdint.h>

#include "image/handle.h"

/* Get the size by a system call, and raise image->size to it. */
int size_refresh(struct op *op, iou_handle *handle, uint64_t *size);

/* Make the file at least end bytes long. Makes no system call if image->size is large enough. */
int size_reach(struct op *op, uint64_t end);

/* Extend the file to end bytes, which is more than size_refresh() has just returned. image->size_lock is held. */
int size_extend_locked(struct op *op, uint64_t end);

/* Fail with ENODATA: the image ends at size, before the end of the range. Another process has made it shorter. */
int size_ends(struct op *op, uint64_t size);

/* Return -ENOSPC if a block device is shorter than end bytes. */
int size_check_device(struct op *op, uint64_t end);

#endif
