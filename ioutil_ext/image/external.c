/* SPDX-License-Identifier: Apache-2.0 */

/*
 * External images. The thread of an operation puts it into the image's queue and sleeps. The owner takes operations in
 * order, and wakes the thread when the memory of its operation is not used any more. So the thread also waits for an
 * operation that is canceled: the owner only learns of the cancellation.
 *
 * A change enters the queue when it arrives, before anything that waits, so the order of the queue is the order of
 * arrival. The owner may take it after its thread has checked that the client is still there. Later operations wait
 * behind it. The owner decides which changes exclude each other; nothing is claimed here.
 *
 * No thread holds a lock while it waits. The owner does not wait for threads.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "image/external.h"

/* ---- the queue; the lock is held -------------------------------------------------------------------------------- */

static void external_notify(struct external *external) {
    if (!external->signaled)
        eventfd_write(external->event_fd, 1);
    external->signaled = true;
}

static void join(struct external *external, struct op *op) {
    op->errand = (struct errand){0};
    sem_init(&op->errand.ended, 0, 0);
    link_append(&external->queued, &op->errand.link);
}

void external_finish(struct op *op) {
    link_remove(&op->errand.link);
    sem_post(&op->errand.ended);
}

static void finish_canceled(struct op *op) {
    op->result.error = ECANCELED;
    op->result.syscall = IOU_SYS_NONE;
    external_finish(op);
}

void external_drop(struct external *external, bool all) {
    for (struct link *node = external->queued.next, *next; node != &external->queued; node = next) {
        struct op *op = external_op(node);
        next = node->next;
        if (op->errand.ready && (all || op_canceled(op)))
            finish_canceled(op);
    }
}

/* ---- the functions for operations ------------------------------------------------------------------------------- */

/* Put a change into the queue. One without a range has no order. */
static int claim(struct op *op) {
    struct external *external = external_of(op->handle);
    if (op->length == 0)
        return 0;
    pthread_mutex_lock(&external->lock);
    join(external, op);
    pthread_mutex_unlock(&external->lock);
    op->claimed = true;
    return 0;
}

static void await_claim(struct op *op) {
    (void)op; /* the owner keeps the order */
}

/* Remove a change that has not run from the queue. The owner has taken one that has run. */
static void unclaim(struct op *op) {
    struct external *external = external_of(op->handle);
    if (!op->claimed || op->errand.ready)
        return;
    pthread_mutex_lock(&external->lock);
    link_remove(&op->errand.link);
    if (!link_empty(&external->queued))
        external_notify(external); /* operations behind it may be ready */
    pthread_mutex_unlock(&external->lock);
    sem_destroy(&op->errand.ended);
}

/* Make an operation ready for the owner. False: the image is closed or the operation canceled; it left the queue. */
static bool hand_over(struct external *external, struct op *op) {
    pthread_mutex_lock(&external->lock);
    if (!op->claimed)
        join(external, op);
    op->errand.ready = true;
    bool goes = !external->closed && !op_canceled(op);
    if (!goes)
        link_remove(&op->errand.link);
    if (!link_empty(&external->queued))
        external_notify(external);
    pthread_mutex_unlock(&external->lock);
    return goes;
}

/* Run an operation to its end, with FUA. */
static int run(struct op *op) {
    struct external *external = external_of(op->handle);
    bool goes = hand_over(external, op);
    while (goes && sem_wait(&op->errand.ended) == -1)
        ; /* EINTR */
    sem_destroy(&op->errand.ended);
    if (!goes)
        return op_fail(op, IOU_SYS_NONE, ECANCELED);
    return -op->result.error;
}

static int refuse(struct op *op) {
    return op_fail(op, IOU_SYS_NONE, EINVAL);
}

static void wake(const iou_handle *handle) {
    struct external *external = external_of(handle);
    pthread_mutex_lock(&external->lock);
    external_drop(external, false);
    for (struct link *node = external->taken.next; node != &external->taken; node = node->next)
        if (!external_op(node)->errand.told && op_canceled(external_op(node)))
            external->interrupted = true;
    if (external->interrupted)
        external_notify(external);
    pthread_mutex_unlock(&external->lock);
}

static void free_image(iou_handle *handle) {
    struct external *external = external_of(handle);
    close(external->event_fd);
    pthread_mutex_destroy(&external->lock);
    image_destroy(&external->image);
    free(external);
}

const struct image_ops EXTERNAL_IMAGE = {
    .remote = true,
    .claim = claim,
    .await_claim = await_claim,
    .unclaim = unclaim,
    .run =
        {
            [IOU_STAT] = refuse,
            [IOU_READ] = run,
            [IOU_WRITE] = run,
            [IOU_ZERO] = run,
            [IOU_TRIM] = run,
            [IOU_FLUSH] = run,
            [IOU_EXTENTS] = run,
        },
    .wake = wake,
    .free = free_image,
};
