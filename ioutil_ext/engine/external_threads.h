/* SPDX-License-Identifier: Apache-2.0 */

/* External threads: threads of lanes that run operations (external_threads.c). */

#ifndef IOUTIL_ENGINE_EXTERNAL_THREADS_H
#define IOUTIL_ENGINE_EXTERNAL_THREADS_H

#include <stdbool.h>

#include "engine/engine.h"
#include "image/operation.h"

/* A thread that is not a worker of the engine and runs operations. The engine lists and counts these operations, and
   refuses them after its stop. */
struct external_thread {
    struct link link; /* in engine->external_threads */
    struct op *op;
};

/* Register and unregister a thread. -ECHILD in a forked child. */
int external_thread_enter(struct iou_engine *engine, struct external_thread *thread);
void external_thread_leave(struct iou_engine *engine, struct external_thread *thread);

/* Run an operation whose claim may run, in this thread for a turn. True: it has ended, its claim is removed, and
   op->result is filled in. */
bool external_thread_turn(struct iou_engine *engine, struct external_thread *thread, struct op *op);

/* Describe the operation that a thread runs. False: none. May run in any thread. */
bool external_thread_look(struct iou_engine *engine, const struct external_thread *thread, iou_running *record);

#endif
