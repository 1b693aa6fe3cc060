/* SPDX-License-Identifier: Apache-2.0 */

/* Data and holes of a range, by SEEK_DATA and SEEK_HOLE (lseek(2)). Where these do not work, all is data. */

#define _GNU_SOURCE
#include <errno.h>
#include <unistd.h>

#include "base/numbers.h"
#include "base/syscalls.h"
#include "image/io.h"

static bool unsupported(int64_t error) {
    return error == -EINVAL || error == -EOPNOTSUPP || error == -ENOSYS || error == -ENOTTY || error == -ESPIPE;
}

/*
 * Find the end (at most `end`) of the run of data or hole at pos. *hole: before, whether the previous run was a hole,
 * at whose end SEEK_DATA has found data; after, whether this run is one.
 */
static int find_file_run(struct op *op, uint64_t pos, uint64_t end, uint64_t *stop, bool *hole) {
    atomic_bool *can_seek = &op->handle->image->can[CAN_SEEK_HOLE];
    bool at_data = *hole;
    *hole = false;
    *stop = end;
    if (!*can_seek)
        return 0;
    int64_t next = at_data ? (int64_t)pos : sys_lseek(op->handle->fd, pos, SEEK_DATA);
    *hole = next == -ENXIO || next > (int64_t)pos;
    if (*hole) {
        if (next > 0)
            *stop = min_u64((uint64_t)next, end);
        return 0;
    }
    if (next >= 0)
        next = sys_lseek(op->handle->fd, pos, SEEK_HOLE);
    if (unsupported(next))
        *can_seek = false;
    else if (next < 0 && next != -ENXIO) /* ENXIO: the file has got shorter; data is always a safe answer */
        return op_fail(op, IOU_SYS_LSEEK, (int)next);
    else if (next > (int64_t)pos) /* otherwise the data has become a hole in between */
        *stop = min_u64((uint64_t)next, end);
    return 0;
}

int extents_run(struct op *op) {
    iou_extent *extents = op->buffer;
    uint64_t most = op->buffer_size / sizeof(*extents);
    uint64_t size, start = op->offset, stop;
    bool hole = false;
    int error = size_refresh(op, op->handle, &size);
    if (!error && start >= size && start < op->handle->image->size)
        /* The image has got shorter: the bytes are lost, and must not be reported as zeros. */
        error = size_ends(op, size);
    uint64_t end = error ? 0 : min_u64(op->offset + op->length, size);
    for (; !error && start < end && op->result.count < most; start = stop) {
        if (op_canceled(op))
            return op_fail(op, IOU_SYS_NONE, ECANCELED);
        error = find_file_run(op, start, end, &stop, &hole);
        if (error)
            break;
        if (op->result.count && extents[op->result.count - 1].flags == hole) /* the image has changed meanwhile */
            extents[op->result.count - 1].end = stop;
        else
            extents[op->result.count++] = (iou_extent){.end = stop, .flags = hole};
        op_advance(op, stop - start);
    }
    return error;
}
