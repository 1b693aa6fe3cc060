/* SPDX-License-Identifier: Apache-2.0 */

/* What runs next (schedule.c). The engine's lock is held. */

#ifndef IOUTIL_ENGINE_SCHEDULE_H
#define IOUTIL_ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "image/operation.h"

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

/*
 * Take the operation's claim, and queue it for its device, or park it until it may run: admitted is called then,
 * without locks, by whoever ended the last claim that it waited for. -ENOMEM. The caller sees to workers.
 */
int schedule_add(struct iou_engine *engine, struct op *op, uint64_t device_id, void (*admitted)(struct claim *claim));

/* Queue an operation that was parked and now may run, before those that were not. The caller sees to workers. */
void schedule_admitted(struct iou_engine *engine, struct op *op);

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

#endif
