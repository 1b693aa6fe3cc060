/* SPDX-License-Identifier: Apache-2.0 */

/* The engine, for the files of this folder. Locks nest in this order: engine->lock, then image->claims.lock. All others
   are leaves, except those of a record of durable ranges (durable/durable.h). */

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
    struct link own_thread; /* operations that run a turn in the thread that has begun them */
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

/* The queue of one file system or device, made at its first use. A quota limits its threads, so a device that hangs
   does not occupy all of them. */
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
 * Take the operation's claim. Then queue the operation for its device, or park it until earlier changes have ended. The
 * thread that removes the last claim that blocks it calls `admitted`, without locks. Returns 0 or -ENOMEM. The caller
 * wakes workers.
 */
int schedule_add(struct iou_engine *engine, struct op *op, uint64_t device_id, void (*admitted)(struct claim *claim));

/* Queue an operation that was parked and may run now, ahead of those that were not parked. The caller wakes workers. */
void schedule_admitted(struct iou_engine *engine, struct op *op);

/* Take the next operation to run, whose claim may run. Returns NULL if there is none now. */
struct op *schedule_next(struct iou_engine *engine);

/* Note that an operation from schedule_next() has ended; or put it at the end of the queue for its next turn. */
void schedule_ended(struct iou_engine *engine, struct op *op);
void schedule_again(struct iou_engine *engine, struct op *op);

/* Return how many operations could start now. */
uint32_t schedule_runnable(const struct iou_engine *engine);

/* Move waiting operations to the list `canceled`: all except closes, or only those whose control is canceled. Adds the
   claims that may run now to the chain *freed. Returns how many operations were moved. */
uint32_t schedule_cancel(struct iou_engine *engine, bool all, struct link *canceled, struct claim **freed);

/* ---- workers.c -------------------------------------------------------------------------------------------------- */

struct worker {
    struct link link; /* in engine->workers, then in engine->dead */
    struct link idle; /* in engine->idle, then in engine->woken */
    struct iou_engine *engine;
    pthread_t thread;
    sem_t wake; /* posted once whenever it was in engine->woken; the worker waits for it without the lock */
    bool awake; /* just started, or taken from the idle list; it counts in engine->waking */
    struct op *op;
    uint32_t number;
};

/* Release the lock, then wake the workers that were chosen. If they were woken with the lock held, they would wait for
   it. */
void engine_unlock(struct iou_engine *engine);

/* Choose all idle workers, so that they notice that the engine stops. Call this with the lock held, and engine_unlock()
   after it. */
void workers_wake_all(struct iou_engine *engine);

/* Join the threads of workers that have ended. They do not take the lock any more. Call this with the lock held. */
void workers_join_dead(struct iou_engine *engine);

/* The lock is not held from here on. */

/* Queue an operation. Without a completion queue, and if nobody sleeps for it, it is the engine's own, and also runs
   after the stop. Returns 0, -ENOMEM or -ESHUTDOWN. */
int workers_submit(struct iou_engine *engine, struct op *op, uint64_t device);

/* Queue an operation whose claim may run, and sleep until a worker has completed it. Its result has its errors. */
void workers_run(struct iou_engine *engine, struct op *op);

/* End the operation's reference to its handle, and push its completion to the queue, which then owns `op`. */
void worker_finish(struct op *op);

/* Do as handle_take(), handle_untake() and handle_put(). After the last reference, a worker closes the image, or this
   thread if no worker can be started. */
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
    atomic_uint_fast64_t outstanding; /* operations that were submitted and not reaped */
};

/* Hand a finished operation to its queue. */
void queue_push(struct iou_queue *queue, struct op *op);

/* ---- mounts.c --------------------------------------------------------------------------------------------------- */

/* A path, and what is known of its mount. */
struct mounted {
    const char *path;
    uint64_t device; /* the device for which opens of the path count, or 0 if unknown */
    size_t length;   /* length of the mount's name */
};

/* Find the mounts of paths. Does not access the mounts themselves. */
void mount_find(struct mounted *paths, uint32_t count);

#endif
