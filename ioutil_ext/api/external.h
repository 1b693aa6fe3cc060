/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Images that C does not have: another server has them, and Python talks to it. Operations of lanes on such an image
 * are errands: a thread hands one over and waits; the image's owner takes it, does it, and says what became of it. Read
 * by cffi's cdef() after api/ioutil.h; the same conventions.
 */

#ifndef IOUTIL_API_EXTERNAL_H
#define IOUTIL_API_EXTERNAL_H

#include <stdint.h>

#include "api/ioutil.h"

typedef struct {
    const char *name;     /* for logs, without secrets; copied, cut to fit */
    uint64_t device;      /* images of one server share memory and threads as those of one device do */
    uint64_t size;        /* bytes, at most 2^63 - 1 */
    uint64_t piece;       /* bytes of the pieces of a request that is alone, which end at multiples of it */
    uint64_t other_piece; /* the same beside other requests. Both: powers of two, 64 KiB to IOU_ERRAND_MOST */
    uint32_t ahead;       /* so many pieces of one request are under way at a time: 1 to 16 */
    uint32_t grows;       /* a write past the end may make the image larger */
} iou_external_options;

enum {
    IOU_ERRAND_PARTS = 2,     /* pieces of memory of one errand, at most */
    IOU_ERRAND_MOST = 4194304 /* bytes of a piece: two pieces of memory */
};

/* An operation to be done, in the order in which they came. Its memory is the owner's until the errand has ended. */
typedef struct {
    uint64_t id;   /* of this errand, never 0 */
    uint32_t kind; /* iou_kind: read, write, zero, trim, flush or extents. 0: the errand of this id is canceled */
    uint32_t flags;
    uint64_t offset;
    uint64_t length;
    void *memory[IOU_ERRAND_PARTS];           /* extents: for iou_extent records; what has no data has none */
    uint64_t memory_length[IOU_ERRAND_PARTS]; /* bytes; of a read or write they are length together */
    iou_control *control;                     /* who asks: the lane's */
} iou_errand;

/*
 * Make the handle of such an image. It is given to lanes as one of a file is, and to nothing else: neither iou_submit()
 * nor iou_execute() take it. -EINVAL, -ENOMEM, -EMFILE.
 */
int iou_external_new(const iou_external_options *options, iou_handle **result);

/* An eventfd, readable when there are errands. The handle's. */
int iou_external_fd(iou_handle *handle);

/* Take errands, at most max; returns how many, or -ECHILD. Clears the eventfd when none is left. */
int iou_external_take(iou_handle *handle, iou_errand *errands, uint32_t max);

/*
 * End an errand: its thread goes on, and its memory is touched no more. cookie is the errand's id; error, syscall,
 * done, size, method and count are those of the operation, done at most its length. Errors: as an operation has them; a
 * fault of the image is told with IOU_SYS_EXTERNAL, what was refused before anything was done with IOU_SYS_NONE.
 * -ENOENT: there is no such errand; -EINVAL: it ends with EIO, because this cannot be; -ECHILD.
 */
int iou_external_end(iou_handle *handle, const iou_completion *completion);

/* Tell how large the image is now. Any thread. */
void iou_external_resize(iou_handle *handle, uint64_t size);

/*
 * Take no more operations: those that were not taken, and all that come later, end with ECANCELED. Returns how many
 * were taken and have not ended, or -ECHILD.
 */
int iou_external_close(iou_handle *handle);

/* End the owner's reference. -EBUSY before iou_external_close() has returned 0, -ECHILD. */
int iou_external_free(iou_handle *handle);

#endif
