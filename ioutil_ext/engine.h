/* SPDX-License-Identifier: Apache-2.0 */

/* The engine's parts: devices and their queues (schedule.c), threads (workers.c), the interface (engine.c). */

#ifndef IOUTIL_ENGINE_H
#define IOUTIL_ENGINE_H

#include <semaphore.h>

#include "internal.h"

/* One file system or device: a queue, and the quota of threads that one that hangs may keep. Made when needed. */
struct device {
    struct link link;     /* in engine->devices */
    struct link ready;    /* in engine->ready: something is queued, and the quota allows to run it */
    struct link queue;    /* operations in order of submission */
    struct link admitted; /* operations that had to wait for earlier changes, and now may run: they go first */
    uint64_t id;
    uint32_t queued; /* in both lists */
    uint32_t parked;
    uint32_t running;
};

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

/* A thread that is not the engine's and runs operations: they are seen, counted and, after stop, refused. */
struct guest {
    struct link link; /* in engine->guests */
    struct op *op;
};

/* All is under lock, but for what never changes. */
struct iou_engine {
    pthread_mutex_t lock;
    uint32_t max_threads, quota, idle_ms;
    uint32_t born; /* fork generation */
    struct link devices, ready, parked;
    struct link workers, dead, guests;
    struct link idle;  /* the last one to become idle is first, so that the others can end */
    struct link woken; /* taken from the idle list, to be woken when the lock is let go */
    pthread_cond_t worker_ended;
    uint32_t threads, busy, waking;
    uint32_t queued, parked_count, devices_count, queues;
    uint64_t submitted, completed;
    uint64_t numbers; /* of workers started */
    bool stopping;
};

/* ---- schedule.c; the lock is held ------------------------------------------------------------------------------- */

/* Take the operation's claim, and queue it for its device, or park it until it may run. -ENOMEM. The caller sees to
   workers. */
int schedule_add(struct iou_engine *engine, struct op *op, uint64_t device_id);

/* The next operation to run, its claim held; NULL: none now. */
struct op *schedule_next(struct iou_engine *engine);

/* An operation from schedule_next() has ended; or goes on when those before it had their turn. */
void schedule_ended(struct iou_engine *engine, struct op *op);
void schedule_again(struct iou_engine *engine, struct op *op);

/* How many operations could start now. */
uint32_t schedule_runnable(const struct iou_engine *engine);

/* Move waiting operations to canceled: all but closes, or those whose control is canceled. Chains claims that may run
   now to *freed. */
uint32_t schedule_cancel(struct iou_engine *engine, bool all, struct link *canceled, struct claim **freed);

/* ---- workers.c -------------------------------------------------------------------------------------------------- */

/* Let the lock go, and wake who was chosen meanwhile: with the lock held they would only run into it. */
void engine_unlock(struct iou_engine *engine);

/* The lock is held, and engine_unlock() follows. Wake or start as many workers as there is work for. */
void workers_wake(struct iou_engine *engine);

/* As above. See to it that there is a worker, which stays as long as there is work. False: none can be started. */
bool workers_ensure(struct iou_engine *engine);

/* As above. Wake all that are idle, to let them see that the engine stops. */
void workers_wake_all(struct iou_engine *engine);

/* The lock is held. Wait for the threads of ended workers, which need it no more. */
void workers_join_dead(struct iou_engine *engine);

/* No lock is held. Give up the handle and hand over the completion; op is not ours any more. */
void worker_finish(struct op *op);

/* ---- guests (guests.c) ------------------------------------------------------------------------------------------ */

/* -ECHILD in a forked child. */
int guest_enter(struct iou_engine *engine, struct guest *guest);
void guest_leave(struct iou_engine *engine, struct guest *guest);

/* Run an operation, which may run, in this thread for a turn. True: it has ended, its claim is gone, and op->result is
   filled in. */
bool guest_turn(struct iou_engine *engine, struct guest *guest, struct op *op);

/* A condition variable on CLOCK_MONOTONIC, and the time of a clock in so many ms. */
void monotonic_cond_init(pthread_cond_t *cond);
void deadline_in(clockid_t clock, struct timespec *deadline, uint64_t ms);

#endif
