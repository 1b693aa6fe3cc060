/* SPDX-License-Identifier: Apache-2.0 */

/* The beginning and the end of an image: opening a chain (open.c), and its end (close.c); verdicts (judge.c); the check
   of all tables before writing (walk.c). */

#ifndef IOUTIL_QCOW2_OPEN_H
#define IOUTIL_QCOW2_OPEN_H

#include "qcow2/qcow2.h"

/* Open op->chain into op->result.handle, with a verdict. Blocks. */
int qcow2_open(struct op *op);

/* Return whether a chain may be opened, as far as this is known without access to storage. */
bool qcow2_is_chain(const iou_qcow2_chain *chain);

/* ---- close.c ---------------------------------------------------------------------------------------------------- */

/* Write the changes that are only in memory to the file, and close all files. */
void close_chain(iou_handle *handle);

/* Close the files of a chain, and free its memory, without writing. The chain may be incomplete. */
void close_files(struct chain *chain);

/* ---- judge.c ---------------------------------------------------------------------------------------------------- */

/* Fill a verdict, unless it has an earlier one. Returns -ENOTSUP for FALLBACK, -EUCLEAN for REFUSE, and notes that in
   op. */
__attribute__((format(printf, 4, 5))) int judge(struct op *op, iou_qcow2_verdict *verdict, iou_qcow2_judgment judgment,
                                                const char *text, ...);

/* Judge whether the header asks for features that only qemu supports. */
int judge_header(struct op *op, iou_qcow2_verdict *verdict, const struct header *header, bool writable);

/* ---- walk.c ----------------------------------------------------------------------------------------------------- */

/*
 * Count the references to each cluster, compare them with the reference counts, and find out which clusters are free.
 * Returns 0, -EUCLEAN if an entry is invalid or a count is too low, so that writing would destroy data, or -ENOTSUP if
 * this would take too long or too much memory. No other thread uses the image yet.
 */
int walk_run(struct qcow2 *q, struct op *op, iou_qcow2_verdict *verdict);

#endif
