/* SPDX-License-Identifier: Apache-2.0 */

/* External threads, which run operations themselves, without a queue. The engine lists them like those of workers. */

#include <errno.h>

#include "base/clock.h"
#include "engine/external_threads.h"
#include "engine/running.h"

int external_thread_enter(struct iou_engine *engine, struct external_thread *thread) {
    if (engine_is_foreign(engine))
        return -ECHILD;
    thread->op = NULL;
    pthread_mutex_lock(&engine->lock);
    link_append(&engine->external_threads, &thread->link);
    pthread_mutex_unlock(&engine->lock);
    return 0;
}

void external_thread_leave(struct iou_engine *engine, struct external_thread *thread) {
    pthread_mutex_lock(&engine->lock);
    link_remove(&thread->link);
    pthread_mutex_unlock(&engine->lock);
}

static void begin(struct iou_engine *engine, struct external_thread *thread, struct op *op) {
    uint64_t now = now_ns();
    bool first = !op->started_at;
    op->engine = engine;
    op->started_at = first ? now : op->started_at;
    op->turn_end = now + TURN_NS;
    pthread_mutex_lock(&engine->lock);
    op->abandoned = op->abandoned || (first && engine->stopping);
    thread->op = op;
    engine->busy++;
    engine->submitted += first;
    pthread_mutex_unlock(&engine->lock);
}

static void end(struct iou_engine *engine, struct external_thread *thread, struct op *op, bool ended) {
    op->result.elapsed = now_ns() - op->started_at;
    pthread_mutex_lock(&engine->lock);
    thread->op = NULL;
    engine->busy--;
    engine->completed += ended;
    if (engine->stopping)
        pthread_cond_broadcast(&engine->worker_ended);
    pthread_mutex_unlock(&engine->lock);
}

bool external_thread_turn(struct iou_engine *engine, struct external_thread *thread, struct op *op) {
    begin(engine, thread, op);
    bool ended = op_turn(op);
    if (ended)
        op_unclaim(op);
    end(engine, thread, op, ended);
    return ended;
}

bool external_thread_look(struct iou_engine *engine, const struct external_thread *thread, iou_running *record) {
    pthread_mutex_lock(&engine->lock);
    const struct op *op = thread->op;
    if (op)
        op_describe(op, now_ns(), record);
    pthread_mutex_unlock(&engine->lock);
    return op;
}
