/* SPDX-License-Identifier: Apache-2.0 */

/* The scheduler: which operation runs next (schedule.c). The engine's lock is held. */

#ifndef IOUTIL_ENGINE_SCHEDULE_H
#define IOUTIL_ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "image/operation.h"

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

#endif
