/* SPDX-License-Identifier: Apache-2.0 */

/* The data of an image: reading, writing and flushing (io.c), and extents (extents.c). */

#ifndef IOUTIL_IMAGE_IO_H
#define IOUTIL_IMAGE_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "image/handle.h"

int io_read(struct op *op);
int io_write(struct op *op);

/* Whether a fiber can run the operation itself: by direct I/O that is asynchronous, or on a file in memory. */
bool io_is_prompt(const struct op *op);

/* Put all that was changed before on stable storage: for a flush, and for a change with FUA. */
int io_sync(struct op *op);

/* Note a failed flush: data may be lost, and each later flush fails. Returns error, as op_fail() does. */
int io_flush_failed(struct op *op, iou_syscall call, int error);

/*
 * Write start..end from data, or zeros if data is NULL. Unaligned edges work; the range is inside the image's size.
 * start is op_position(). Counts progress; writes less than all if the turn is over.
 */
int io_write_range(struct op *op, const char *data, uint64_t start, uint64_t end);

int extents_run(struct op *op);

#endif
