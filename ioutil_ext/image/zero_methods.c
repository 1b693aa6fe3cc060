/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The methods of zeroing, one call at a time: which can be used; what is learnt from a failure; the length of the next
 * call, by the duration of this one. README.md has what each error means.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/falloc.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "base/syscalls.h"
#include "image/io.h"

/* ---- which methods are usable ----------------------------------------------------------------------------------- */

/*
 * The kernel drops a device's range from the page cache, dirty pages too, before it finds out that the device cannot
 * punch (block/fops.c, blkdev_fallocate). So a refusal would undo the last buffered writes. Those of this process
 * continue during the call, so nothing is punched while there is a buffered handle; those of other processes are
 * written back before. The other calls drop the range, too, but the methods after them write zeros.
 */
static bool can_punch(const struct image *image) {
    return image->can[CAN_PUNCH_HOLE] && !(image->type == IOU_BLOCK && image->buffered_handles);
}

bool zero_is_usable(const struct zeroing *z, iou_method method) {
    const struct image *image = z->op->handle->image;
    if (z->skipped & 1u << method)
        return false;
    switch (method) {
    case IOU_METHOD_PUNCH_HOLE:
        return can_punch(image);
    case IOU_METHOD_ZERO_RANGE:
        return image->can[CAN_ZERO_RANGE];
    case IOU_METHOD_PUNCH_AND_ALLOCATE:
        return image->can[CAN_PUNCH_HOLE] && image->can[CAN_FALLOCATE];
    case IOU_METHOD_ALLOCATE:
        return z->past_eof && image->can[CAN_FALLOCATE];
    case IOU_METHOD_BLKZEROOUT:
        return image->can[CAN_BLKZEROOUT];
    default:
        return true;
    }
}

/* ---- failures --------------------------------------------------------------------------------------------------- */

bool zero_is_unsupported(int error) {
    return error == -EOPNOTSUPP || error == -ENODEV || error == -ENOSYS || error == -ENOTTY;
}

/*
 * EREMOTEIO: a SCSI disk that does not have the WRITE SAME with UNMAP that it claims to have; but also one that has
 * failed in the middle of the command. So a fast request, which has no other method that is sure to zero, must not
 * report that nothing was changed.
 */
bool zero_is_refused(const struct op *op, int error) {
    return error == -EINVAL || error == -EBUSY || (error == -EREMOTEIO && !(op->flags & IOU_FAST_ONLY));
}

#define IS_LEARNT(capability, call) ((int)(capability) == (int)(call) - (int)IOU_SYS_PUNCH_HOLE)

_Static_assert(IS_LEARNT(CAN_PUNCH_HOLE, IOU_SYS_PUNCH_HOLE) && IS_LEARNT(CAN_ZERO_RANGE, IOU_SYS_ZERO_RANGE) &&
                   IS_LEARNT(CAN_FALLOCATE, IOU_SYS_FALLOCATE) && IS_LEARNT(CAN_BLKZEROOUT, IOU_SYS_BLKZEROOUT) &&
                   IS_LEARNT(IOU_ZEROING_CALLS - 1, IOU_SYS_BLKZEROOUT),
               "capabilities and what is told of them are in the order of the calls");

/* Note the result of a system call, and learn from its failure. Report the errno for which the call is given up, once
   for each image. */
static int judge_call(struct op *op, iou_syscall call, int error) {
    struct image *image = op->handle->image;
    int capability = (int)call - (int)IOU_SYS_PUNCH_HOLE;
    if (error >= 0)
        return 0;
    bool unsupported = zero_is_unsupported(error);
    if (unsupported)
        image->can[capability] = false;
    if ((unsupported || zero_is_refused(op, error)) && !atomic_exchange(&image->given_up[capability], true))
        op->result.given_up[capability] = (uint16_t)-error;
    return op_fail(op, call, error);
}

/* ---- the calls -------------------------------------------------------------------------------------------------- */

/* Write the dirty pages of a range, also those of other processes. After a failure data is lost, so every later flush
   fails. */
static int write_back(struct op *op, uint64_t start, uint64_t end) {
    int error = sys_write_back(op->handle->fd, start, end - start);
    return error < 0 ? io_flush_failed(op, IOU_SYS_SYNC_FILE_RANGE, error) : 0;
}

/*
 * Punch a device so that a refusal changes nothing (see can_punch): dirty pages are written before. Pages that the
 * kernel has zeroed in part are dropped after a refusal, so that they are read again. LARGEST_FOLIO: a folio of the
 * cache is dropped only as a whole.
 */
#define LARGEST_FOLIO (2 * MIB)

static int punch_or_change_nothing(struct op *op, uint64_t offset, uint64_t length) {
    int fd = op->handle->fd;
    uint64_t start = round_down(offset, LARGEST_FOLIO), end = round_up(offset + length, LARGEST_FOLIO);
    int error = write_back(op, start, end);
    if (error)
        return error;
    error = sys_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
    if (error < 0)
        sys_drop_clean(fd, start, end - start); /* best effort: the device itself has not changed */
    return judge_call(op, IOU_SYS_PUNCH_HOLE, error);
}

static int punch_hole(struct op *op, uint64_t offset, uint64_t length) {
    bool zeros_follow = op->kind == IOU_ZERO && !(op->flags & IOU_FAST_ONLY);
    if (op->handle->image->type == IOU_BLOCK && !zeros_follow)
        return punch_or_change_nothing(op, offset, length);
    int error = sys_fallocate(op->handle->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
    return judge_call(op, IOU_SYS_PUNCH_HOLE, error);
}

static int zero_range(struct op *op, uint64_t offset, uint64_t length) {
    int error = sys_fallocate(op->handle->fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, offset, length);
    return judge_call(op, IOU_SYS_ZERO_RANGE, error);
}

static int allocate(struct op *op, int mode, uint64_t offset, uint64_t length) {
    int error = sys_fallocate(op->handle->fd, mode, offset, length);
    if (error >= 0)
        op->handle->image->fallocate_proven = true;
    return judge_call(op, IOU_SYS_FALLOCATE, error);
}

static int blkzeroout(struct op *op, uint64_t offset, uint64_t length) {
    return judge_call(op, IOU_SYS_BLKZEROOUT, sys_blkzeroout(op->handle->fd, offset, length));
}

/*
 * A fast request must not punch and then find out that it cannot allocate: the bytes would be changed. So, until
 * fallocate has worked once, it is tried first; that changes no byte.
 */
static int punch_and_allocate(struct zeroing *z, uint64_t offset, uint64_t length) {
    struct op *op = z->op;
    int error = 0;
    if (z->fast_only && !op->handle->image->fallocate_proven)
        error = allocate(op, FALLOC_FL_KEEP_SIZE, offset, length);
    if (!error)
        error = punch_hole(op, offset, length);
    if (error)
        return error;
    z->changed = true;
    return allocate(op, z->grow_later, offset, length);
}

static int call(struct zeroing *z, iou_method method, uint64_t offset, uint64_t length) {
    switch (method) {
    case IOU_METHOD_PUNCH_HOLE:
        return punch_hole(z->op, offset, length);
    case IOU_METHOD_ZERO_RANGE:
        return zero_range(z->op, offset, length);
    case IOU_METHOD_PUNCH_AND_ALLOCATE:
        return punch_and_allocate(z, offset, length);
    case IOU_METHOD_ALLOCATE:
        return allocate(z->op, z->grow_later, offset, length);
    case IOU_METHOD_BLKZEROOUT:
        return blkzeroout(z->op, offset, length);
    default:
        return io_write_range(z->op, NULL, offset, offset + length);
    }
}

/* ---- the length of a step --------------------------------------------------------------------------------------- */

/*
 * The length of one call, a step. Others wait for it, so it should take at most half a second. After a slower one,
 * steps shrink in proportion. They double only after a whole step of less than an eighth of a second, so that the next
 * one is expected to take less than a quarter. A step on a device has at most 256 MiB: published experience with thin
 * iSCSI (LIO) is lost connections with steps of 1 GiB, because one command takes longer than its timeout of 30 s, and
 * none with 128 MiB. Also, if storage becomes slow after it has cached the first gigabytes, its first slow step is a
 * small one. A file system that zeroes in an instant only changes metadata, and each call waits for its journal: 8 GiB
 * of ext4 take 5.8 ms in steps of 256 MiB, 4.7 of 1 GiB; 512 MiB 1.20 ms in two, 1.16 in one.
 */
#define MIN_STEP MIB
#define MAX_STEP (256 * MIB)
#define MAX_INSTANT_STEP (1024 * MIB)
#define SLOW_STEP 500000000u
#define FAST_STEP 125000000u
#define INSTANT_STEP 20000000u

static void adapt_step(struct image *image, uint64_t length, uint64_t elapsed) {
    bool instant = image->type == IOU_FILE && elapsed < INSTANT_STEP;
    uint64_t most = instant ? MAX_INSTANT_STEP : MAX_STEP, step = image->step;
    if (elapsed > SLOW_STEP)
        step = round_down((uint64_t)((double)length * SLOW_STEP / (double)elapsed), MIN_STEP);
    else if (elapsed < FAST_STEP && length >= step)
        step = 2 * step;
    image->step = max_u64(MIN_STEP, min_u64(most, step));
}

uint64_t zero_step_end(const struct zeroing *z, uint64_t start, uint64_t end) {
    const iou_handle *handle = z->op->handle;
    uint64_t stop = round_down(start + handle->image->step, max_u64(MIN_STEP, handle->lock_unit));
    return stop > start ? min_u64(stop, end) : end;
}

/* ---- one call, and its account ---------------------------------------------------------------------------------- */

_Static_assert(IOU_METHOD_NONE < IOU_METHOD_PUNCH_HOLE && IOU_METHOD_PUNCH_HOLE < IOU_METHOD_ZERO_RANGE &&
                   IOU_METHOD_ZERO_RANGE < IOU_METHOD_ALLOCATE && IOU_METHOD_ALLOCATE < IOU_METHOD_PUNCH_AND_ALLOCATE &&
                   IOU_METHOD_PUNCH_AND_ALLOCATE < IOU_METHOD_BLKZEROOUT && IOU_METHOD_BLKZEROOUT < IOU_METHOD_WRITE,
               "methods are in the order of expense");

void zero_note_method(struct op *op, iou_method method) {
    if (op->result.method < (int32_t)method)
        op->result.method = (int32_t)method;
}

int zero_apply(struct zeroing *z, iou_method method, uint64_t offset, uint64_t length) {
    struct op *op = z->op;
    uint64_t began = now_ns();
    int error = call(z, method, offset, length);
    if (error)
        return error;
    z->changed = true;
    zero_note_method(op, method);
    if (method != IOU_METHOD_WRITE) { /* a write counts its own progress, and is several calls */
        adapt_step(op->handle->image, length, now_ns() - began);
        op_advance(op, length);
    }
    op->result.syscall = IOU_SYS_NONE;
    return 0;
}
