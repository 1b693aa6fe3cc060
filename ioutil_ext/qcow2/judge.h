/* SPDX-License-Identifier: Apache-2.0 */

/* Verdicts on an image, with their reasons (judge.c). */

#ifndef IOUTIL_QCOW2_JUDGE_H
#define IOUTIL_QCOW2_JUDGE_H

#include "qcow2/qcow2.h"

/* Fill a verdict, unless an earlier one is there. Returns -ENOTSUP for FALLBACK, -EUCLEAN for REFUSE, in op, too. */
__attribute__((format(printf, 4, 5))) int judge(struct op *op, iou_qcow2_verdict *verdict, iou_qcow2_judgment judgment,
                                                const char *text, ...);

/* What only qemu does, as the header says. */
int judge_header(struct op *op, iou_qcow2_verdict *verdict, const struct header *header, bool writable);

#endif
