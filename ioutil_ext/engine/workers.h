/* SPDX-License-Identifier: Apache-2.0 */

/* Worker threads (workers.c). */

#ifndef IOUTIL_ENGINE_WORKERS_H
#define IOUTIL_ENGINE_WORKERS_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

#include "engine/engine.h"
#include "image/handle.h"

struct worker {
    struct link link; /* in engine->workers, then in engine->dead */
    struct link idle; /* in engine->idle, then in engine->woken */
    struct iou_engine *engine;
    pthread_t thread;
    sem_t wake; /* posted once for each time in engine->woken; the worker waits for it without the lock */
    bool awake; /* taken from the idle list, or just started: counted in engine->waking */
    struct op *op;
    uint32_t number;
};

/* Release the lock, then wake the workers that were chosen: with the lock held, they would only wait for it. */
void engine_unlock(struct iou_engine *engine);

/* Choose or start as many workers as there is work for. The lock is held, and engine_unlock() follows. */
void workers_wake(struct iou_engine *engine);

/* Choose all idle workers, so that they see that the engine stops. The lock is held, and engine_unlock() follows. */
void workers_wake_all(struct iou_engine *engine);

/* Join the threads of workers that have ended, which do not take the lock any more. The lock is held. */
void workers_join_dead(struct iou_engine *engine);

/* The lock is not held from here on. */

/* Queue an operation. One without a completion queue for which nobody sleeps is the engine's own, and runs after the
   stop, too. -ENOMEM, -ESHUTDOWN. */
int workers_submit(struct iou_engine *engine, struct op *op, uint64_t device);

/* Queue an operation whose claim may run, and sleep until a worker has run it to its end. Errors are in its result. */
void workers_run(struct iou_engine *engine, struct op *op);

/* End the operation's reference to its handle, and push its completion to the queue, which owns op then. */
void worker_finish(struct op *op);

/* As handle_take(), handle_untake() and handle_put(). A worker closes the image after the last reference; if no worker
   can be started, this thread does. */
int engine_take_handle(struct iou_engine *engine, iou_handle *handle, uint32_t kind);
void engine_untake_handle(struct iou_engine *engine, iou_handle *handle, uint32_t kind);
void engine_put_handle(struct iou_engine *engine, iou_handle *handle);

#endif
