/* SPDX-License-Identifier: Apache-2.0 */

/* External images: their operations (external.c), and the functions for their owner (external_owner.c). */

#ifndef IOUTIL_IMAGE_EXTERNAL_H
#define IOUTIL_IMAGE_EXTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/external.h"
#include "base/link.h"
#include "image/handle.h"

/* An external image and its queue of errands. */
struct external {
    struct image image;
    pthread_mutex_t lock; /* a leaf */
    int event_fd;
    bool signaled; /* the eventfd is readable */
    bool closed;
    bool interrupted; /* an errand that was taken is canceled, and its owner does not know yet */
    uint64_t last_id;
    struct link queued, taken; /* operations, in order of arrival */
};

static inline struct external *external_of(const iou_handle *handle) {
    return container_of(handle->image, struct external, image);
}

static inline struct op *external_op(struct link *node) {
    return container_of(node, struct op, errand.link);
}

/* The functions of external images. */
extern const struct image_ops EXTERNAL_IMAGE;

/* ---- the queue; the lock is held -------------------------------------------------------------------------------- */

/* Wake the thread of an operation, which owns the operation from now on. */
void external_finish(struct op *op);

/* End the queued operations that may be taken: those that are canceled, or all. */
void external_drop(struct external *external, bool all);

#endif
