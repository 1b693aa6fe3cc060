/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The scheduler. Devices take turns. The operations of a device run in order of submission, at most its quota at a
 * time. An operation that overlaps an earlier change is parked; when it is admitted, it runs ahead of the queue. An
 * operation whose turn is over goes to the end of the queue.
 */

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "engine/engine.h"
#include "engine/running.h"

static struct device *find_device(struct iou_engine *engine, uint64_t id) {
    for (struct link *node = engine->devices.next; node != &engine->devices; node = node->next) {
        struct device *device = container_of(node, struct device, link);
        if (device->id == id)
            return device;
    }
    struct device *device = calloc(1, sizeof(*device));
    if (!device)
        return NULL;
    device->id = id;
    link_init(&device->queue);
    link_init(&device->admitted);
    link_init(&device->ready);
    link_append(&engine->devices, &device->link);
    return device;
}

/* Update the list of ready devices after a change of the device, and free a device without operations. */
static void settle_device(struct iou_engine *engine, struct device *device) {
    bool ready = device->queued && device->running < engine->quota;
    if (ready && link_empty(&device->ready))
        link_append(&engine->ready, &device->ready);
    if (!ready)
        link_remove(&device->ready);
    if (device->queued || device->running || device->parked)
        return;
    link_remove(&device->link);
    free(device);
}

static void enqueue(struct iou_engine *engine, struct link *list, struct op *op) {
    link_append(list, &op->link);
    op->device->queued++;
    engine->queued++;
}

static void dequeue(struct iou_engine *engine, struct op *op) {
    link_remove(&op->link);
    op->device->queued--;
    engine->queued--;
}

uint32_t schedule_runnable(const struct iou_engine *engine) {
    uint64_t runnable = 0;
    for (const struct link *node = engine->ready.next; node != &engine->ready; node = node->next) {
        const struct device *device = container_of(node, const struct device, ready);
        runnable += min_u64(device->queued, engine->quota - device->running);
    }
    return (uint32_t)min_u64(runnable, UINT32_MAX);
}

/* ---- parking ---------------------------------------------------------------------------------------------------- */

static void park(struct iou_engine *engine, struct op *op) {
    link_append(&engine->parked, &op->link);
    op->device->parked++;
    engine->parked_count++;
}

static void unpark(struct iou_engine *engine, struct op *op) {
    link_remove(&op->link);
    op->device->parked--;
    engine->parked_count--;
}

void schedule_admitted(struct iou_engine *engine, struct op *op) {
    unpark(engine, op);
    enqueue(engine, &op->device->admitted, op);
    settle_device(engine, op->device);
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

int schedule_add(struct iou_engine *engine, struct op *op, uint64_t device_id, void (*admitted)(struct claim *claim)) {
    op->device = find_device(engine, device_id);
    if (!op->device)
        return -ENOMEM;
    if (!op->claimed) { /* parked operations are canceled by schedule_cancel() only */
        op->claim.admitted = admitted;
        op->claim.canceled = NULL;
    }
    int error = op_claim(op);
    if (error == 0)
        enqueue(engine, &op->device->queue, op);
    else if (error == -EAGAIN)
        park(engine, op);
    settle_device(engine, op->device);
    return error == -ENOMEM ? error : 0;
}

struct op *schedule_next(struct iou_engine *engine) {
    if (link_empty(&engine->ready))
        return NULL;
    struct device *device = container_of(engine->ready.next, struct device, ready);
    struct link *list = link_empty(&device->admitted) ? &device->queue : &device->admitted;
    struct op *op = container_of(list->next, struct op, link);
    dequeue(engine, op);
    op->abandoned = engine->stopping && op->kind != IOU_CLOSE && !op->started_at;
    device->running++;
    link_remove(&device->ready); /* settle_device() appends it: other devices come first */
    settle_device(engine, device);
    return op;
}

void schedule_ended(struct iou_engine *engine, struct op *op) {
    op->device->running--;
    settle_device(engine, op->device);
}

void schedule_again(struct iou_engine *engine, struct op *op) {
    op->device->running--;
    enqueue(engine, &op->device->queue, op);
    settle_device(engine, op->device);
}

/* ---- canceling -------------------------------------------------------------------------------------------------- */

/* Whether an operation has to end. all: each that has not begun, except closes. */
static bool is_op_canceled(const struct op *op, bool all) {
    return op->kind != IOU_CLOSE && ((all && !op->started_at) || op_canceled(op));
}

static uint32_t cancel_queued(struct iou_engine *engine, struct link *list, bool all, struct link *canceled) {
    uint32_t count = 0;
    for (struct link *node = list->next, *next; node != list; node = next) {
        struct op *op = container_of(node, struct op, link);
        next = node->next;
        if (!is_op_canceled(op, all))
            continue;
        dequeue(engine, op);
        link_append(canceled, &op->link);
        count++;
    }
    return count;
}

static uint32_t cancel_parked(struct iou_engine *engine, bool all, struct link *canceled, struct claim **freed) {
    uint32_t count = 0;
    for (struct link *node = engine->parked.next, *next; node != &engine->parked; node = next) {
        struct op *op = container_of(node, struct op, link);
        struct device *device = op->device;
        next = node->next;
        /* An operation that was admitted meanwhile enters the queue, and ends when a worker takes it. */
        if (!is_op_canceled(op, all) || !claim_withdraw(&op->handle->image->claims, &op->claim, freed))
            continue;
        op->claimed = false;
        unpark(engine, op);
        settle_device(engine, device);
        link_append(canceled, &op->link);
        count++;
    }
    return count;
}

uint32_t schedule_cancel(struct iou_engine *engine, bool all, struct link *canceled, struct claim **freed) {
    uint32_t count = 0;
    for (struct link *node = engine->devices.next, *next; node != &engine->devices; node = next) {
        struct device *device = container_of(node, struct device, link);
        next = node->next;
        count += cancel_queued(engine, &device->queue, all, canceled);
        count += cancel_queued(engine, &device->admitted, all, canceled);
        settle_device(engine, device);
    }
    count += cancel_parked(engine, all, canceled, freed);
    return count;
}
