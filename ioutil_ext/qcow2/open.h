/* SPDX-License-Identifier: Apache-2.0 */

/* Opening a chain (open.c). */

#ifndef IOUTIL_QCOW2_OPEN_H
#define IOUTIL_QCOW2_OPEN_H

#include "qcow2/qcow2.h"

/* Open op->chain into op->result.handle, with a verdict. Blocks. */
int qcow2_open(struct op *op);

/* Whether a chain may be opened, as far as can be seen without a look at storage. */
bool qcow2_is_chain(const iou_qcow2_chain *chain);

#endif
