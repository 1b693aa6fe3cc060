/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The engine, for its parts. Locks nest in this order: engine->lock, then image->claims.lock; all others are leaves,
 * but for those of a record of durable ranges (durable/durable.h).
 */

#ifndef IOUTIL_ENGINE_ENGINE_H
#define IOUTIL_ENGINE_ENGINE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/ioutil.h"
#include "base/link.h"
#include "base/thread.h"
#include "image/handle.h"
#include "image/operation.h"

/* The lock guards all members that change. */
struct iou_engine {
    pthread_mutex_t lock;
    uint32_t max_threads, quota, idle_ms;
    uint32_t born; /* fork generation */
    struct link devices, ready, parked;
    struct link workers, dead;
    struct link own_thread; /* operations that are in a turn in the thread which has begun them */
    struct link idle;       /* the worker that became idle last comes first, so that the others can end */
    struct link woken;      /* workers from the idle list, to be woken when the lock is released */
    pthread_cond_t worker_ended;
    uint32_t threads, busy, waking;
    uint32_t queued, parked_count, queues;
    uint64_t numbers; /* workers started so far */
    bool stopping;
};

/* Whether this process is a forked child of the one that made the engine. */
static inline bool engine_is_foreign(const struct iou_engine *engine) {
    return engine->born != fork_generation();
}

/* ---- schedule.c ------------------------------------------------------------------------------------------------- */

/* The scheduler: which operation runs next. The engine's lock is held. */

/* The queue of one file system or device. A quota limits its threads, so that a device that hangs does not keep all of
   them. Made at its first use. */
struct device {
    struct link link;     /* in engine->devices */
    struct link ready;    /* in engine->ready: an operation is queued, and the quota allows it to run */
    struct link queue;    /* operations in order of submission */
    struct link admitted; /* operations that have waited for earlier changes and may run now: they run first */
    uint64_t id;
    uint32_t queued; /* in both lists */
    uint32_t parked;
    uint32_t running;
};

/*
 * Take the operation's claim, and queue the operation for its device, or park it until it may run. The thread that
 * removes the last claim that blocks it calls admitted, without locks. -ENOMEM. The caller wakes workers.
 */
int schedule_add(struct iou_engine *engine, struct op *op, uint64_t device_id, void (*admitted)(struct claim *claim));

/* Queue an operation that was parked and may run now, ahead of those that were not. The caller wakes workers. */
void schedule_admitted(struct iou_engine *engine, struct op *op);

/* Take the next operation to run, whose claim may run. NULL: there is none now. */
struct op *schedule_next(struct iou_engine *engine);

/* An operation from schedule_next() has ended; or it goes to the end of the queue for its next turn. */
void schedule_ended(struct iou_engine *engine, struct op *op);
void schedule_again(struct iou_engine *engine, struct op *op);

/* Return how many operations could start now. */
uint32_t schedule_runnable(const struct iou_engine *engine);

/* Move waiting operations to the list canceled: all but closes, or those whose control is canceled. Chains the claims
   that may run now to *freed. Returns how many were moved. */
uint32_t schedule_cancel(struct iou_engine *engine, bool all, struct link *canceled, struct claim **freed);

/* ---- workers.c -------------------------------------------------------------------------------------------------- */

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

/* ---- queue.c ---------------------------------------------------------------------------------------------------- */

/* Completion queues. Their locks are leaves. */

struct iou_queue {
    struct iou_engine *engine;
    int eventfd;
    pthread_mutex_t lock;
    struct link completed;
    atomic_uint_fast64_t outstanding; /* submitted and not reaped */
};

/* Hand a finished operation to its queue. */
void queue_push(struct iou_queue *queue, struct op *op);

/* ---- mounts.c --------------------------------------------------------------------------------------------------- */

/* A path, and what was found of its mount. */
struct mounted {
    const char *path;
    uint64_t device; /* for which opens of the path count; 0: unknown */
    size_t length;   /* of the name of the mount */
};

/* Find the mounts of paths. Does not touch the mounts. */
void mount_find(struct mounted *paths, uint32_t count);

#endif
