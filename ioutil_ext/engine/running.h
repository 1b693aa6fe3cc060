/* SPDX-License-Identifier: Apache-2.0 */

/* How operations run, turn after turn, on whatever image (running.c), and on files and devices (file_image.c). */

#ifndef IOUTIL_ENGINE_RUNNING_H
#define IOUTIL_ENGINE_RUNNING_H

#include <stdbool.h>

#include "image/handle.h"

/* -EINVAL if the request cannot be an operation. */
int op_check(const struct op *op);

/*
 * Run in this thread, to the end or until it is others' turn; the claim, if any, is held. True: it has ended, and
 * op->result is filled in. A canceled one has ended without having begun, or gone on.
 */
bool op_turn(struct op *op);

/* End an operation that is not under way just now, canceled. */
void op_cancel(struct op *op);

/* Enter the claim of an operation that has one. -EAGAIN: it waits; -ENOMEM. */
int op_claim(struct op *op);

/* Wait in this thread until it may run, or is canceled. */
void op_await(struct op *op);

/* Remove the claim that it has, if any, waiting or not; calls admitted of others. No lock of ours may be held. */
void op_unclaim(struct op *op);

/* The row of files and devices. */
extern const struct image_ops FILE_IMAGE;

#endif
