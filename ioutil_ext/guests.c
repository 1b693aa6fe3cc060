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
    op->engine = engine;
    op->started_at = now_ns();
    pthread_mutex_lock(&engine->lock);
    op->abandoned = engine->stopping;
    guest->op = op;
    engine->busy++;
    engine->submitted++;
    pthread_mutex_unlock(&engine->lock);
}

static void end(struct iou_engine *engine, struct guest *guest, struct op *op) {
    op->result.elapsed = now_ns() - op->started_at;
    pthread_mutex_lock(&engine->lock);
    guest->op = NULL;
    engine->busy--;
    engine->completed++;
    if (engine->stopping)
        pthread_cond_broadcast(&engine->worker_ended);
    pthread_mutex_unlock(&engine->lock);
}

void guest_run(struct iou_engine *engine, struct guest *guest, struct op *op) {
    struct image *image = op->handle->image;
    begin(engine, guest, op);
    if (op_claims(op) && !op->abandoned && !op_canceled(op)) {
        op_make_claim(op);
        op->claimed =
            claim_take(image, &op->claim) || claim_wait(image, &op->claim, op->control ? &op->control->canceled : NULL);
    }
    op_run(op);
    if (op->claimed)
        claim_release(image, &op->claim);
    end(engine, guest, op);
}
