/* SPDX-License-Identifier: Apache-2.0 */

/* Data of an image, and what is known of it: reading, writing and flushing (io.c), extents (extents.c). */

#ifndef IOUTIL_IMAGE_IO_H
#define IOUTIL_IMAGE_IO_H

#include <stdint.h>

#include "image/handle.h"

int io_read(struct op *op);
int io_write(struct op *op);
int io_flush(struct op *op);

/* Note that data was lost on its way to stable storage; returns error, as op_fail() does. */
int io_flush_failed(struct op *op, iou_syscall call, int error);

/*
 * Write start..end from data, or zeros if NULL, with its edges; the range is inside the image's size. start is where
 * the operation is. Counts progress; less than all if the turn is over.
 */
int io_write_range(struct op *op, const char *data, uint64_t start, uint64_t end);

int extents_run(struct op *op);

#endif
