/* SPDX-License-Identifier: Apache-2.0 */

/*
 * External images: another server has the image, and Python talks to that server. An operation of a lane on such an
 * image is an errand. A thread of the lane queues the errand and waits; the image's owner, which is Python, takes it,
 * does it and ends it with a result. cffi's cdef() reads this after api/ioutil.h, whose conventions apply.
 */

#ifndef IOUTIL_API_EXTERNAL_H
#define IOUTIL_API_EXTERNAL_H

#include <stdint.h>

#include "api/ioutil.h"

typedef struct {
    const char *name; /* for logs, without secrets; copied, cut to fit */
    uint64_t device;  /* of the server: its images share quotas of memory and threads, as those of a device do */
    uint64_t size;    /* bytes, at most 2^63 - 1 */
    uint64_t piece;   /* bytes; pieces of a long request end at multiples of it: a power of two, 64 KiB to
                         IOU_EXTERNAL_PIECE */
    uint32_t ahead;   /* pieces of one request that are under way at a time: 1 to 16 */
    uint32_t grows;   /* a write past the end may make the image larger */
} iou_external_options;

enum {
    IOU_EXTERNAL_PIECE = 2097152 /* bytes: the largest piece, which is in one piece of memory */
};

/* An operation that the owner has to do. Errands come in order of arrival. The owner may use the memory until the end
   of the errand. */
typedef struct {
    uint64_t id;   /* of this errand, never 0 */
    uint32_t kind; /* iou_kind: read, write, zero, trim, flush or extents. 0: cancel the errand with this id */
    uint32_t flags;
    uint64_t offset;
    uint64_t length;
    void *memory;           /* for data, or for the iou_extent records of extents; else NULL */
    uint64_t memory_length; /* bytes; that of a read or write is length */
    iou_control *control;   /* of the lane, which it identifies */
} iou_errand;

/*
 * Make the handle of an external image. Lanes take it like the handle of a file; iou_submit() and iou_execute() do not.
 * -EINVAL, -ENOMEM, -EMFILE.
 */
int iou_external_new(const iou_external_options *options, iou_handle **result);

/* The eventfd of the handle. It is readable while there are errands to take. Owned by the handle. */
int iou_external_fd(iou_handle *handle);

/* Take at most max errands. Returns how many, or -ECHILD. Clears the eventfd if none is left. */
int iou_external_take(iou_handle *handle, iou_errand *errands, uint32_t max);

/*
 * End an errand. Its thread goes on, and the owner does not use the memory any more. cookie is the id of the errand;
 * error, syscall, done, size, method and count are those of the operation; done is at most its length. Errors are those
 * of operations. syscall is IOU_SYS_EXTERNAL for a fault of the image, and IOU_SYS_NONE for an operation that was
 * refused before it began. -ENOENT: there is no such errand; -EINVAL: the completion is invalid, and the errand ends
 * with EIO; -ECHILD.
 */
int iou_external_end(iou_handle *handle, const iou_completion *completion);

/* Set the size of the image, in bytes, after it has changed. Any thread. */
void iou_external_resize(iou_handle *handle, uint64_t size);

/*
 * Close the image. Errands that were not taken end with ECANCELED, and so do all later operations. Returns how many
 * errands were taken and have not ended, or -ECHILD.
 */
int iou_external_close(iou_handle *handle);

/* Drop the owner's reference to the handle. -EBUSY before iou_external_close() has returned 0, -ECHILD. */
int iou_external_free(iou_handle *handle);

#endif
