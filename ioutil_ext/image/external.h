/* SPDX-License-Identifier: Apache-2.0 */

/* Images that somebody else has: their operations (external.c), and their owner (external_owner.c). */

#ifndef IOUTIL_IMAGE_EXTERNAL_H
#define IOUTIL_IMAGE_EXTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/external.h"
#include "base/link.h"
#include "image/handle.h"

/* The image and its queue. */
struct external {
    struct image image;
    pthread_mutex_t lock; /* a leaf */
    int event_fd;
    bool signaled; /* the eventfd is readable */
    bool closed;
    bool interrupted; /* one of those that were taken is canceled, and that was not told */
    uint64_t last_id;
    struct link queued, taken; /* operations, in order of arrival */
};

static inline struct external *external_of(const iou_handle *handle) {
    return container_of(handle->image, struct external, image);
}

static inline struct op *external_op(struct link *node) {
    return container_of(node, struct op, errand.link);
}

/* The row of such images. */
extern const struct image_ops EXTERNAL_IMAGE;

/* ---- the queue; the lock is held -------------------------------------------------------------------------------- */

/* Let the thread of an operation go on: it is not ours any more. */
void external_finish(struct op *op);

/* End those that may be taken and are canceled, or all of them. */
void external_drop(struct external *external, bool all);

#endif
