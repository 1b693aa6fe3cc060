/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The files of a chain (layer.c). All input and output of the format, of data and of tables, goes through these
 * functions. Call them without a lock. They return 0 or -errno, with the system call in `op`, the operation on the
 * guest's disk. Ranges need no alignment.
 */

#ifndef IOUTIL_QCOW2_LAYER_H
#define IOUTIL_QCOW2_LAYER_H

#include "image/handle.h"
#include "qcow2/qcow2.h"

/* Read. Bytes past the end of the file read as zeros. */
int layer_read(struct op *op, iou_handle *file, void *memory, uint64_t offset, uint64_t length);

/* Write inside of the file. */
int layer_write(struct op *op, iou_handle *file, const void *data, uint64_t offset, uint64_t length);

/* Zero a range inside of the file. The flags may be IOU_FAST_ONLY and IOU_ALLOCATE. After -EOPNOTSUPP nothing was
   changed. Notes the method in op. */
int layer_zero(struct op *op, iou_handle *file, uint64_t offset, uint64_t length, uint32_t flags);

/* Put all earlier writes on stable storage. After a failure each later call fails. */
int layer_sync(struct op *op, iou_handle *file);

/* Make the file longer by zeros, and reserve their space; if the file system cannot, *reserved is set to false.
   layer_set_size() sets the size without reserving space. Nobody else may change the size. */
int layer_grow(struct op *op, iou_handle *file, uint64_t end, bool *reserved);
int layer_set_size(struct op *op, iou_handle *file, uint64_t end);

/* Reserve space for a range inside of the file, if the file system can. The content stays. */
int layer_reserve(struct op *op, iou_handle *file, uint64_t offset, uint64_t length);

/* Find the end of the data or hole at offset, at most `end`. */
int layer_extent(struct op *op, iou_handle *file, uint64_t offset, uint64_t end, uint64_t *stop, bool *hole);

static inline uint64_t layer_size(const iou_handle *file) {
    return file->image->size;
}

/* ---- output.c --------------------------------------------------------------------------------------------------- */

/* Copies of pieces of tables that are written together (output.c). */

struct piece {
    uint64_t offset, length; /* in the file */
    const void *source;
};

struct output {
    struct piece *pieces;
    uint64_t count, room, bytes;
    uint8_t *memory; /* the copies, in the order of the pieces */
};

int output_add(struct output *output, uint64_t offset, uint64_t length, const void *source);

/* Copy the sources, in the order of the file. */
int output_copy(struct output *output);

/* Write the copies. Pieces that follow each other are written in one call. */
int output_write(const struct output *output, struct qcow2 *q, struct op *op);
void output_free(struct output *output);

#endif
