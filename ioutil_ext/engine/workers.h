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
    sem_t wake; /* posted once each time that it was in engine->woken, never waited for with the lock */
    bool awake; /* taken from the idle list, or just started: counted in engine->waking */
    struct op *op;
    uint32_t number;
};

/* Let the lock go, and wake who was chosen meanwhile: with the lock held they would only run into it. */
void engine_unlock(struct iou_engine *engine);

/* The lock is held, and engine_unlock() follows. Wake or start as many workers as there is work for. */
void workers_wake(struct iou_engine *engine);

/* As above. Wake all that are idle, to let them see that the engine stops. */
void workers_wake_all(struct iou_engine *engine);

/* The lock is held. Wait for the threads of ended workers, which need it no more. */
void workers_join_dead(struct iou_engine *engine);

/* No lock is held below. */

/* Queue an operation; without a queue for its completion it is one of our own, which runs after stop, too. -ENOMEM,
   -ESHUTDOWN. */
int workers_submit(struct iou_engine *engine, struct op *op, uint64_t device);

/* Give up the handle and hand over the completion; op is not ours any more. */
void worker_finish(struct op *op);

/* As handle_take(), handle_untake() and handle_put(). The last reference is closed by a worker, or, if none can be had,
   here. */
int engine_take_handle(struct iou_engine *engine, iou_handle *handle, uint32_t kind);
void engine_untake_handle(struct iou_engine *engine, iou_handle *handle, uint32_t kind);
void engine_put_handle(struct iou_engine *engine, iou_handle *handle);

#endif
