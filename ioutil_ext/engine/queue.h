/* SPDX-License-Identifier: Apache-2.0 */

/* Completion queues (queue.c). Their locks are leaves. */

#ifndef IOUTIL_ENGINE_QUEUE_H
#define IOUTIL_ENGINE_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "image/operation.h"

struct iou_queue {
    struct iou_engine *engine;
    int eventfd;
    pthread_mutex_t lock;
    struct link completed;
    atomic_uint_fast64_t outstanding; /* submitted and not reaped */
};

/* Hand a finished operation to its queue. */
void queue_push(struct iou_queue *queue, struct op *op);

#endif
