/* SPDX-License-Identifier: Apache-2.0 */

/* Zeroing: the methods, one call at a time (methods.c), and the policy, which makes requests of them (policy.c). */

#ifndef IOUTIL_ZERO_ZERO_H
#define IOUTIL_ZERO_ZERO_H

#include <stdbool.h>
#include <stdint.h>

#include "image/handle.h"

/* Operations, for the row of files and devices. */
int zero_run(struct op *op);
int zero_trim(struct op *op);

/* Whether the request may try the method, as far as is known. */
bool zero_is_usable(const struct zeroing *z, iou_method method);

/*
 * Zero with one method, or find out that it does not do. On success it is noted in the completion and counted; on
 * failure the completion has the system call.
 */
int zero_apply(struct zeroing *z, iou_method method, uint64_t offset, uint64_t length);

/* What the storage cannot do: learnt for the image's life. */
bool zero_is_unsupported(int error);

/* Refused although the range is aligned as the device demands: another method may do, for this request. */
bool zero_is_refused(const struct op *op, int error);

/* Where the step ends that begins at start. Steps end at blocks, so that only the ends of the request cover one in
 * part.
 */
uint64_t zero_step_end(const struct zeroing *z, uint64_t start, uint64_t end);

/* Note in the completion that a method was used. */
void zero_note_method(struct op *op, iou_method method);

#endif
