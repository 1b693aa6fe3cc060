/* SPDX-License-Identifier: Apache-2.0 */

/* The size of an image (size.c). */

#ifndef IOUTIL_IMAGE_SIZE_H
#define IOUTIL_IMAGE_SIZE_H

#include <stdint.h>

#include "image/handle.h"

/* Ask for the size and raise image->size. */
int size_refresh(struct op *op, iou_handle *handle, uint64_t *size);

/* Make the file at least end bytes long. Does nothing, not even a system call, if image->size says it is. */
int size_reach(struct op *op, uint64_t end);

/* For who holds image->size_lock: make the file end bytes long, which is more than size_refresh() just told. */
int size_extend_locked(struct op *op, uint64_t end);

/* Fail because the image ends before the range, at size: others have cut it. */
int size_ends(struct op *op, uint64_t size);

/* -ENOSPC if a block device ends before end. */
int size_check_device(struct op *op, uint64_t end);

#endif
