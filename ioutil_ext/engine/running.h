/* SPDX-License-Identifier: Apache-2.0 */

/* Running operations, turn by turn: on any image (running.c), and on files and devices (file_image.c). */

#ifndef IOUTIL_ENGINE_RUNNING_H
#define IOUTIL_ENGINE_RUNNING_H

#include <stdbool.h>

#include "engine/engine.h"
#include "image/handle.h"
#include "image/operation.h"

/* Check an operation. Returns 0, or -EINVAL if its kind, flags, range or buffer is invalid. */
int op_check(const struct op *op);

/* Run an operation in this thread, to its end or to the end of its turn. Its claim, if it has one, may run. Returns
   true if it has ended; then op->result is filled in. A canceled operation ends without another step. */
bool op_turn(struct op *op);

/* End an operation that is not in a turn now, with this errno. */
void op_end(struct op *op, int error);

/*
 * Enter the claim of an operation if it is a change and has none yet. Returns 0 if it may run, -ECANCELED, -ENOMEM, or
 * -EAGAIN if it has to wait. When it may run, its `admitted` is called. If that is NULL, call op_await() next, in this
 * thread or fiber.
 */
int op_claim(struct op *op);

/* Sleep until the operation may run, or is canceled. */
void op_await(struct op *op);

/* Remove the operation's claim, if it has one, even if it still waits. Calls `admitted` of other claims, so the caller
   must not hold locks. */
void op_unclaim(struct op *op);

/* Describe a running operation. `now` is in ns. */
void op_describe(const struct op *op, uint64_t now, iou_running *record);

/* The functions of files and devices. */
extern const struct image_ops FILE_IMAGE;

/* ---- own_thread.c ----------------------------------------------------------------------------------------------- */

/*
 * Run a turn of an operation whose claim may run, in this thread. Returns true if it has ended; then its claim is
 * removed, and op->result is filled in. The engine lists and counts the operation during the turn, and refuses it after
 * its stop.
 */
bool own_thread_turn(struct iou_engine *engine, struct op *op);

/* Describe the operation of this owner that has run longest, in any thread. Returns false if none runs. Any thread may
   call this. */
bool engine_slowest(struct iou_engine *engine, const void *owner, iou_running *record);

#endif
