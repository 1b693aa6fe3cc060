/* SPDX-License-Identifier: Apache-2.0 */

/* Operations that run in the thread which has begun them, as those of fibers do (own_thread.c). */

#ifndef IOUTIL_ENGINE_OWN_THREAD_H
#define IOUTIL_ENGINE_OWN_THREAD_H

#include <stdbool.h>

#include "engine/engine.h"
#include "image/operation.h"

/* Run an operation whose claim may run, in this thread for a turn. True: it has ended, its claim is removed, and
   op->result is filled in. The engine lists and counts it meanwhile, and refuses it after its stop. */
bool own_thread_turn(struct iou_engine *engine, struct op *op);

/* Describe the operation of this owner that has run longest, wherever it runs. False: none runs. Any thread. */
bool engine_slowest(struct iou_engine *engine, const void *owner, iou_running *record);

#endif
