/* SPDX-License-Identifier: Apache-2.0 */

/* Zeroing: the methods, one call at a time (zero_methods.c), and the policy, which makes requests of them (zero.c). */

#ifndef IOUTIL_ZERO_H
#define IOUTIL_ZERO_H

#include "internal.h"

/* One request to zero on its way down the table, or to trim. */
struct zeroing {
    struct op *op;
    const iou_method *rungs; /* methods in the order in which they are tried, then NONE; of a trim: NULL */
    bool fast_only;
    bool past_eof;    /* the range started at or past the end of the file: there is nothing to be freed */
    bool changed;     /* something of the range may have been zeroed */
    int grow_later;   /* FALLOC_FL_KEEP_SIZE as long as the file has not been extended to the end of the range */
    unsigned skipped; /* bits of methods that this request was refused */
};

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

/* Where the step ends that begins at start. Steps end at blocks, so that only the ends of the request have edges. */
uint64_t zero_step_end(const struct zeroing *z, uint64_t start, uint64_t end);

/* Note in the completion that a method was used. */
void zero_note_method(struct op *op, iou_method method);

#endif
