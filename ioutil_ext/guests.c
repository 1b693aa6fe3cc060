/* SPDX-License-Identifier: Apache-2.0 */

/* Threads of others that run operations themselves: no queue, no hop, and as visible as the engine's own. */

#include <errno.h>

#include "engine.h"

int guest_enter(struct iou_engine *engine, struct guest *guest) {
    if (engine_is_foreign(engine))
        return -ECHILD;
    guest->op = NULL;
    pthread_mutex_lock(&engine->lock);
    link_append(&engine->guests, &guest->link);
    pthread_mutex_unlock(&engine->lock);
    return 0;
}

void guest_leave(struct iou_engine *engine, struct guest *guest) {
    pthread_mutex_lock(&engine->lock);
    link_remove(&guest->link);
    pthread_mutex_unlock(&engine->lock);
}

static void begin(struct iou_engine *engine, struct guest *guest, struct op *op) {
    uint64_t now = now_ns();
    bool first = !op->started_at;
    op->engine = engine;
    op->started_at = first ? now : op->started_at;
    op->turn_end = now + TURN_NS;
    pthread_mutex_lock(&engine->lock);
    op->abandoned = op->abandoned || (first && engine->stopping);
    guest->op = op;
    engine->busy++;
    engine->submitted += first;
    pthread_mutex_unlock(&engine->lock);
}

static void end(struct iou_engine *engine, struct guest *guest, struct op *op, bool ended) {
    op->result.elapsed = now_ns() - op->started_at;
    pthread_mutex_lock(&engine->lock);
    guest->op = NULL;
    engine->busy--;
    engine->completed += ended;
    if (engine->stopping)
        pthread_cond_broadcast(&engine->worker_ended);
    pthread_mutex_unlock(&engine->lock);
}

bool guest_turn(struct iou_engine *engine, struct guest *guest, struct op *op) {
    begin(engine, guest, op);
    bool ended = op_turn(op);
    if (ended)
        op_unclaim(op);
    end(engine, guest, op, ended);
    return ended;
}
