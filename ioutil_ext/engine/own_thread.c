/* SPDX-License-Identifier: Apache-2.0 */

/* Operations without a worker. */

#include "base/clock.h"
#include "engine/running.h"

static void begin_own(struct iou_engine *engine, struct op *op) {
    uint64_t now = now_ns();
    bool first = !op->started_at;
    op->engine = engine;
    if (first)
        op->submitted_at = op->started_at = now;
    op->turn_end = now + TURN_NS;
    op->shares_thread = !op->alone;
    pthread_mutex_lock(&engine->lock);
    op->abandoned = op->abandoned || (first && engine->stopping);
    link_append(&engine->own_thread, &op->link);
    engine->busy++;
    pthread_mutex_unlock(&engine->lock);
}

static void end_own(struct iou_engine *engine, struct op *op) {
    op->result.elapsed = now_ns() - op->started_at;
    pthread_mutex_lock(&engine->lock);
    link_remove(&op->link);
    engine->busy--;
    if (engine->stopping)
        pthread_cond_broadcast(&engine->worker_ended);
    pthread_mutex_unlock(&engine->lock);
}

bool own_thread_turn(struct iou_engine *engine, struct op *op) {
    begin_own(engine, op);
    bool ended = op_turn(op);
    if (ended)
        op_unclaim(op);
    end_own(engine, op);
    return ended;
}
