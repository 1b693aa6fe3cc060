/* SPDX-License-Identifier: Apache-2.0 */

/* Running operations turn by turn: on any image (running.c), and on files and devices (file_image.c). */

#ifndef IOUTIL_ENGINE_RUNNING_H
#define IOUTIL_ENGINE_RUNNING_H

#include <stdbool.h>

#include "engine/engine.h"
#include "image/handle.h"
#include "image/operation.h"

/* Check an operation. -EINVAL: its kind, flags, range or buffer is invalid. */
int op_check(const struct op *op);

/*
 * Run an operation in this thread, to its end or to the end of its turn. Its claim, if it has one, may run. True: it
 * has ended, and op->result is filled in. A canceled operation ends without a further step.
 */
bool op_turn(struct op *op);

/* End an operation that is not in a turn now, with an errno. */
void op_end(struct op *op, int error);

/*
 * Enter the claim of an operation, if it is a change that has none. -EAGAIN: it waits. Its admitted is called when it
 * may run; without one, op_await() has to follow in this thread or fiber. -ECANCELED; -ENOMEM.
 */
int op_claim(struct op *op);

/* Sleep until the operation may run, or is canceled. */
void op_await(struct op *op);

/* Remove the operation's claim, if it has one, waiting or not. Calls admitted of others, so the caller must not hold
   locks. */
void op_unclaim(struct op *op);

/* Describe an operation that runs. now: ns. */
void op_describe(const struct op *op, uint64_t now, iou_running *record);

/* The functions of files and devices. */
extern const struct image_ops FILE_IMAGE;

/* ---- own_thread.c ----------------------------------------------------------------------------------------------- */

/* Run an operation whose claim may run, in this thread for a turn. True: it has ended, its claim is removed, and
   op->result is filled in. The engine lists and counts it meanwhile, and refuses it after its stop. */
bool own_thread_turn(struct iou_engine *engine, struct op *op);

/* Describe the operation of this owner that has run longest, wherever it runs. False: none runs. Any thread. */
bool engine_slowest(struct iou_engine *engine, const void *owner, iou_running *record);

#endif
