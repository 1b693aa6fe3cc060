/* SPDX-License-Identifier: Apache-2.0 */

/* The beginning and the end of an image: opening a chain (open.c), and its end (close.c); verdicts (judge.c); the look
   at all tables before writing (walk.c). */

#ifndef IOUTIL_QCOW2_OPEN_H
#define IOUTIL_QCOW2_OPEN_H

#include "qcow2/qcow2.h"

/* Open op->chain into op->result.handle, with a verdict. Blocks. */
int qcow2_open(struct op *op);

/* Whether a chain may be opened, as far as can be seen without a look at storage. */
bool qcow2_is_chain(const iou_qcow2_chain *chain);

/* ---- close.c ---------------------------------------------------------------------------------------------------- */

/* Put what is in memory into the file, and close all files. */
void close_chain(iou_handle *handle);

/* Close the files, and free the memory, of a chain that may be there only in part. Nothing is written. */
void close_files(struct chain *chain);

/* ---- judge.c ---------------------------------------------------------------------------------------------------- */

/* Fill a verdict, unless an earlier one is there. Returns -ENOTSUP for FALLBACK, -EUCLEAN for REFUSE, in op, too. */
__attribute__((format(printf, 4, 5))) int judge(struct op *op, iou_qcow2_verdict *verdict, iou_qcow2_judgment judgment,
                                                const char *text, ...);

/* What only qemu does, as the header says. */
int judge_header(struct op *op, iou_qcow2_verdict *verdict, const struct header *header, bool writable);

/* ---- walk.c ----------------------------------------------------------------------------------------------------- */

/*
 * Count the references to each cluster, compare them with the reference counts, and learn from these which clusters are
 * free. -EUCLEAN: an entry cannot be right, or a count is too low, so that writing would destroy data. -ENOTSUP: it
 * would take too long or too much memory. No other thread knows the image yet.
 */
int walk_run(struct qcow2 *q, struct op *op, iou_qcow2_verdict *verdict);

#endif
