/* SPDX-License-Identifier: Apache-2.0 */

/* Flushing: changes are put on stable storage, and a failure is kept. */

#include "base/syscalls.h"
#include "image/io.h"

/*
 * After a failed fsync the data is lost, and the next fsync succeeds. So the failure is kept: all flushes of handles
 * that were open then fail. Backend.flush() in Python names the places that do this for other storage.
 */
int io_flush_failed(struct op *op, iou_syscall call, int error) {
    op->handle->image->flush_error = -error;
    op->handle->image->flush_failures++;
    op->flushes_fail = true;
    return op_fail(op, call, error);
}

int io_check_flushes(struct op *op) {
    struct image *image = op->handle->image;
    bool failed = image->flush_failures != op->handle->flush_failures;
    op->flushes_fail |= failed;
    return failed ? op_fail(op, IOU_SYS_FDATASYNC, image->flush_error) : 0;
}

/*
 * The kernel reports a failure once for each open file: of two simultaneous calls, the second one could succeed before
 * the first one has noted the error. So calls run one at a time, and callers that arrive meanwhile share the next call.
 * Failures are checked before and after it, because a call on another handle may have received the error meanwhile.
 */
int io_sync(struct op *op) {
    struct syncing *syncing = &op->handle->syncing;
    int error = io_check_flushes(op);
    if (error)
        return error;
    pthread_mutex_lock(&syncing->lock);
    for (uint64_t need = sharing_need(&syncing->calls); sharing_begin(&syncing->calls, &syncing->lock, need);) {
        pthread_mutex_unlock(&syncing->lock);
        if ((error = sys_fdatasync(op->handle->fd)) < 0)
            io_flush_failed(op, IOU_SYS_FDATASYNC, error);
        pthread_mutex_lock(&syncing->lock);
        sharing_end(&syncing->calls, &syncing->lock, false);
    }
    pthread_mutex_unlock(&syncing->lock);
    return io_check_flushes(op);
}
