/* SPDX-License-Identifier: Apache-2.0 */

/* Completion queues. The eventfd is written only when the list was empty, so a burst costs one wake-up. */

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/engine.h"

/* The engine is not freed before its queues. */
static void count_queues(struct iou_engine *engine, int more) {
    pthread_mutex_lock(&engine->lock);
    engine->queues += (uint32_t)more;
    pthread_mutex_unlock(&engine->lock);
}

int iou_queue_new(iou_engine *engine, iou_queue **result) {
    if (engine_is_foreign(engine))
        return -ECHILD;
    iou_queue *queue = calloc(1, sizeof(*queue));
    if (!queue)
        return -ENOMEM;
    queue->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (queue->eventfd == -1) {
        int error = -errno;
        free(queue);
        return error;
    }
    queue->engine = engine;
    pthread_mutex_init(&queue->lock, NULL);
    link_init(&queue->completed);
    count_queues(engine, 1);
    *result = queue;
    return 0;
}

int iou_queue_free(iou_queue *queue) {
    if (engine_is_foreign(queue->engine))
        return -ECHILD;
    if (queue->outstanding)
        return -EBUSY;
    /* A worker that pushed the last completion may still hold the lock. */
    pthread_mutex_lock(&queue->lock);
    pthread_mutex_unlock(&queue->lock);
    count_queues(queue->engine, -1);
    close(queue->eventfd);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
    return 0;
}

int iou_queue_fd(iou_queue *queue) {
    return queue->eventfd;
}

/* Writes the eventfd under the lock: as soon as the completion was reaped, the queue may be freed. */
void queue_push(struct iou_queue *queue, struct op *op) {
    uint64_t one = 1;
    pthread_mutex_lock(&queue->lock);
    bool was_empty = link_empty(&queue->completed);
    link_append(&queue->completed, &op->link);
    if (was_empty && write(queue->eventfd, &one, sizeof(one)) == -1) {
        /* Only EAGAIN is possible, after 2^64 - 2 writes: the eventfd is readable then. */
    }
    pthread_mutex_unlock(&queue->lock);
}

static void free_op(struct op *op) {
    free(op->path);
    free(op);
}

int iou_reap(iou_queue *queue, iou_completion *completions, uint32_t max) {
    uint32_t count = 0;
    uint64_t wakeups;
    if (engine_is_foreign(queue->engine))
        return -ECHILD;
    pthread_mutex_lock(&queue->lock);
    while (count < max && !link_empty(&queue->completed)) {
        struct op *op = container_of(link_take(&queue->completed), struct op, link);
        completions[count++] = op->result;
        free_op(op);
    }
    if (link_empty(&queue->completed) && read(queue->eventfd, &wakeups, sizeof(wakeups)) == -1) {
        /* EAGAIN: nothing had been written. */
    }
    pthread_mutex_unlock(&queue->lock);
    queue->outstanding -= count;
    return (int)count;
}
