/* SPDX-License-Identifier: Apache-2.0 */

/* Files and devices: their data (io.c), extents (extents.c), calls (calls.c), flushes (sync.c), size (size.c), locks
   (locks.c), and zeroing: requests (zero.c), and the methods, one call at a time (zero_methods.c). */

#ifndef IOUTIL_IMAGE_IO_H
#define IOUTIL_IMAGE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "image/handle.h"

int io_read(struct op *op);
int io_write(struct op *op);

/* Return whether a fiber can run the operation itself, because its direct I/O is asynchronous, or the file is in
   memory. */
bool io_is_prompt(const struct op *op);

/* Write start..end from `data`, or zeros if data is NULL. Edges need not be aligned. The range is inside of the image's
   size, and `start` is op_position(). Counts progress. Writes only a part if the turn is over. */
int io_write_range(struct op *op, const char *data, uint64_t start, uint64_t end);

int extents_run(struct op *op);

/* ---- calls.c ---------------------------------------------------------------------------------------------------- */

/* Do as sys_pread() and sys_pwrite(). `fd` is the handle's, or its tail_fd, which is not direct. */
ssize_t call_pread(const struct op *op, void *memory, size_t length, uint64_t offset);
ssize_t call_pwrite(const struct op *op, int fd, const void *data, size_t length, uint64_t offset);

/* ---- sync.c ----------------------------------------------------------------------------------------------------- */

/* Put all earlier changes on stable storage, for a flush or for a change with FUA. */
int io_sync(struct op *op);

/* Note a failed flush: data may be lost, so each later flush fails. Returns `error`, as op_fail() does. */
int io_flush_failed(struct op *op, iou_syscall call, int error);

/* Fail if a flush has failed since the handle was opened. */
int io_check_flushes(struct op *op);

/* ---- size.c ----------------------------------------------------------------------------------------------------- */

/* Get the size by a system call, and raise image->size to it. */
int size_refresh(struct op *op, iou_handle *handle, uint64_t *size);

/* Make the file at least end bytes long. Makes no system call if image->size is large enough. */
int size_reach(struct op *op, uint64_t end);

/* Extend the file to `end` bytes, which is more than size_refresh() has just returned. Call this with image->size_lock
   held. */
int size_extend_locked(struct op *op, uint64_t end);

/* Fail with ENODATA, because the image ends at `size`, before the end of the range: another process has made it
   shorter. */
int size_ends(struct op *op, uint64_t size);

/* Return -ENOSPC if a block device is shorter than end bytes. */
int size_check_device(struct op *op, uint64_t end);

/* ---- locks.c ---------------------------------------------------------------------------------------------------- */

/*
 * Let a handle hold the locks of its image. The first handle takes the locks, and the end of the last one releases
 * them. All handles of a raw image that write share them. With HANDLE_FORMAT, either several handles that read hold the
 * locks, or one that writes. Fails with EBUSY and IOU_SYS_LOCK if another program has locked the image, and with EBUSY
 * and IOU_SYS_OPEN if the device is mounted or part of another device.
 */
int locks_hold(struct op *op, iou_handle *handle);
void locks_release(iou_handle *handle);

/* ---- zero.c, zero_methods.c ------------------------------------------------------------------------------------- */

/* The operations zero and trim on files and devices. */
int zero_run(struct op *op);
int zero_trim(struct op *op);

/* Return whether the request may try the method, as far as is known. */
bool zero_is_usable(const struct zeroing *z, iou_method method);

/* Zero with one method, or find out that it does not work. A success is noted in the completion and counted. After a
   failure the completion has the system call. */
int zero_apply(struct zeroing *z, iou_method method, uint64_t offset, uint64_t length);

/* Return whether an error means that the storage does not support the method, which holds for the life of the image. */
bool zero_is_unsupported(int error);

/* Return whether a call was refused although the range is aligned as the device requires. Another method may work for
   this request. */
bool zero_is_refused(const struct op *op, int error);

/* Return where the step that begins at `start` ends. Steps end at blocks, so only the ends of the request cover a block
   in part. */
uint64_t zero_step_end(const struct zeroing *z, uint64_t start, uint64_t end);

/* Note in the completion that a method was used. */
void zero_note_method(struct op *op, iou_method method);

#endif
