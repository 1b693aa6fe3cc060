/* SPDX-License-Identifier: Apache-2.0 */

/* Worker threads: they start on demand, one is woken for each operation, and they end when idle. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "engine/running.h"

/* ---- one operation ---------------------------------------------------------------------------------------------- */

/* Run an operation for a turn. False: it has not ended. */
static bool run_turn(struct op *op) {
    if (!op_turn(op))
        return false;
    op->result.queued = op->started_at - op->submitted_at;
    op->result.elapsed = now_ns() - op->started_at;
    op_unclaim(op);
    return true;
}

/* Whether the operation is the engine's own: nobody waits for its completion. */
static bool is_own(const struct op *op) {
    return !op->queue && !op->sleeps;
}

void worker_finish(struct op *op) {
    struct iou_queue *queue = op->queue;
    if (op->sleeps) { /* the caller that sleeps holds its handle */
        waiter_wake(&op->waiter);
        return;
    }
    if (op->handle)
        engine_put_handle(op->engine, op->handle); /* a closer is freed with its handle */
    if (queue)
        queue_push(queue, op);
}

/* ---- the thread ------------------------------------------------------------------------------------------------- */

static void set_awake(struct worker *worker) {
    worker->awake = true;
    worker->engine->waking++;
}

static void clear_awake(struct worker *worker) {
    worker->awake = false;
    worker->engine->waking--;
}

/* Sleep until woken. False: after so many ms. Uses the real-time clock: if it is set, idle threads only end early or
   late. */
static bool sleep_ms(struct worker *worker, uint64_t ms) {
    struct timespec deadline;
    deadline_in(CLOCK_REALTIME, &deadline, ms);
    while (sem_timedwait(&worker->wake, &deadline) == -1)
        if (errno == ETIMEDOUT)
            return false;
    return true;
}

/* Sleep until there is work. False: end the thread. */
static bool worker_rest(struct worker *worker) {
    struct iou_engine *engine = worker->engine;
    bool woken, wanted;
    /* A parked operation needs a thread when it is admitted, and it may not be possible to start one then. */
    if (engine->stopping && engine->parked_count == 0)
        return false;
    worker->idle.prev = &engine->idle; /* first in the list */
    worker->idle.next = engine->idle.next;
    engine->idle.next->prev = &worker->idle;
    engine->idle.next = &worker->idle;
    do {
        pthread_mutex_unlock(&engine->lock);
        woken = sleep_ms(worker, (uint64_t)engine->idle_ms + 1);
        pthread_mutex_lock(&engine->lock);
        wanted = worker->awake || engine->parked_count; /* awake: the wake-up follows */
    } while (!woken && wanted);
    if (woken)
        clear_awake(worker);
    link_remove(&worker->idle);
    return woken;
}

static void start_op(struct worker *worker, struct op *op) {
    uint64_t now = now_ns();
    worker->op = op;
    worker->engine->busy++;
    op->started_at = op->started_at ? op->started_at : now;
    op->turn_end = now + TURN_NS;
}

static void end_op(struct worker *worker, struct op *op, bool ended) {
    struct iou_engine *engine = worker->engine;
    worker->op = NULL;
    engine->busy--;
    if (!ended) {
        schedule_again(engine, op);
        return;
    }
    schedule_ended(engine, op);
}

/* Run operations until the worker ends. Takes the lock once for each: to count its end and to take the next one. */
static void work(struct worker *worker) {
    struct iou_engine *engine = worker->engine;
    struct op *ended = NULL;
    for (;;) {
        struct op *op = schedule_next(engine);
        if (!op && !ended) {
            if (!worker_rest(worker))
                return;
            continue;
        }
        if (op)
            start_op(worker, op);
        pthread_mutex_unlock(&engine->lock);
        if (ended)
            worker_finish(ended);
        bool whole = op && run_turn(op);
        pthread_mutex_lock(&engine->lock);
        if (op)
            end_op(worker, op, whole);
        ended = whole ? op : NULL;
    }
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct iou_engine *engine = worker->engine;
    char name[16];
    snprintf(name, sizeof(name), "ioutil-%u", worker->number % 10000);
    pthread_setname_np(pthread_self(), name);
    pthread_mutex_lock(&engine->lock);
    clear_awake(worker);
    work(worker);
    engine->threads--;
    link_remove(&worker->link);
    link_append(&engine->dead, &worker->link);
    if (engine->stopping)
        workers_wake_all(engine); /* workers that rest because of a parked operation, which may have ended now */
    pthread_cond_broadcast(&engine->worker_ended);
    engine_unlock(engine);
    return NULL;
}

/* ---- starting and waking ---------------------------------------------------------------------------------------- */

static bool start_worker(struct iou_engine *engine) {
    workers_join_dead(engine);
    struct worker *worker = calloc(1, sizeof(*worker));
    if (!worker)
        return false;
    worker->engine = engine;
    worker->number = (uint32_t)engine->numbers++;
    link_init(&worker->idle);
    sem_init(&worker->wake, 0, 0);
    set_awake(worker);
    if (thread_start(&worker->thread, worker_main, worker)) {
        clear_awake(worker);
        sem_destroy(&worker->wake);
        free(worker);
        return false;
    }
    link_append(&engine->workers, &worker->link);
    engine->threads++;
    return true;
}

static void wake_one(struct iou_engine *engine) {
    struct worker *worker = container_of(link_take(&engine->idle), struct worker, idle);
    link_append(&engine->woken, &worker->idle);
    set_awake(worker);
}

/* Does not use a worker after its wake-up: it may be freed then. */
void engine_unlock(struct iou_engine *engine) {
    struct link woken;
    link_move(&engine->woken, &woken);
    pthread_mutex_unlock(&engine->lock);
    while (!link_empty(&woken)) {
        struct worker *worker = container_of(link_take(&woken), struct worker, idle);
        sem_post(&worker->wake);
    }
}

/* Choose or start as many workers as there is work for. The lock is held, and engine_unlock() follows. */
static void workers_wake(struct iou_engine *engine) {
    uint32_t wanted = schedule_runnable(engine);
    while (engine->waking < wanted) {
        if (!link_empty(&engine->idle))
            wake_one(engine);
        else if (engine->threads >= engine->max_threads || !start_worker(engine))
            break;
    }
}

/* Make sure that there is a worker, which stays as long as there is work. False: none can be started. */
static bool workers_ensure(struct iou_engine *engine) {
    return engine->threads || start_worker(engine);
}

void workers_wake_all(struct iou_engine *engine) {
    while (!link_empty(&engine->idle))
        wake_one(engine);
}

void workers_join_dead(struct iou_engine *engine) {
    while (!link_empty(&engine->dead)) {
        struct worker *worker = container_of(link_take(&engine->dead), struct worker, link);
        pthread_join(worker->thread, NULL);
        sem_destroy(&worker->wake);
        free(worker);
    }
}

/* ---- submission ------------------------------------------------------------------------------------------------- */

static void on_admitted(struct claim *claim) {
    struct op *op = container_of(claim, struct op, claim);
    struct iou_engine *engine = op->engine;
    pthread_mutex_lock(&engine->lock);
    schedule_admitted(engine, op);
    workers_wake(engine);
    engine_unlock(engine);
}

int workers_submit(struct iou_engine *engine, struct op *op, uint64_t device) {
    op->engine = engine;
    link_init(&op->link);
    op->submitted_at = op->submitted_at ? op->submitted_at : now_ns();
    pthread_mutex_lock(&engine->lock);
    int error = engine->stopping && !is_own(op) ? -ESHUTDOWN : workers_ensure(engine) ? 0 : -ENOMEM;
    if (!error && op->sleeps && op_canceled(op)) /* by another thread, whose iou_cancel_queued() may have missed it */
        error = -ECANCELED;
    if (!error)
        error = schedule_add(engine, op, device, on_admitted);
    workers_wake(engine);
    engine_unlock(engine);
    return error;
}

void workers_run(struct iou_engine *engine, struct op *op) {
    op->sleeps = true;
    op->shares_thread = op->needs_worker = false;
    waiter_init(&op->waiter);
    int error = workers_submit(engine, op, op->handle->image->waits_for);
    if (!error) {
        waiter_sleep(&op->waiter, FOR_EVER);
        return;
    }
    waiter_end(&op->waiter);
    op_end(op, error == -ESHUTDOWN ? ECANCELED : -error);
    op_unclaim(op);
}

static void close_last(struct iou_engine *engine, iou_handle *handle) {
    struct op *op = &handle->closer;
    op->kind = IOU_CLOSE;
    op->handle = handle;
    if (workers_submit(engine, op, handle->image->waits_for))
        handle_end(handle);
}

int engine_take_handle(struct iou_engine *engine, iou_handle *handle, uint32_t kind) {
    bool last;
    int error = handle_take(handle, kind, &last);
    if (last)
        close_last(engine, handle);
    return error;
}

void engine_untake_handle(struct iou_engine *engine, iou_handle *handle, uint32_t kind) {
    if (handle_untake(handle, kind))
        close_last(engine, handle);
}

void engine_put_handle(struct iou_engine *engine, iou_handle *handle) {
    if (handle_put(handle))
        close_last(engine, handle);
}
