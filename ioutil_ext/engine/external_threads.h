/* SPDX-License-Identifier: Apache-2.0 */

/* Threads of others that run operations (external_threads.c). */

#ifndef IOUTIL_ENGINE_EXTERNAL_THREADS_H
#define IOUTIL_ENGINE_EXTERNAL_THREADS_H

#include <stdbool.h>

#include "engine/engine.h"
#include "image/operation.h"

/* A thread that is not the engine's and runs operations: they are seen, counted and, after stop, refused. */
struct external_thread {
    struct link link; /* in engine->external_threads */
    struct op *op;
};

/* -ECHILD in a forked child. */
int external_thread_enter(struct iou_engine *engine, struct external_thread *thread);
void external_thread_leave(struct iou_engine *engine, struct external_thread *thread);

/* Run an operation, which may run, in this thread for a turn. True: it has ended, its claim is gone, and op->result is
   filled in. */
bool external_thread_turn(struct iou_engine *engine, struct external_thread *thread, struct op *op);

#endif
