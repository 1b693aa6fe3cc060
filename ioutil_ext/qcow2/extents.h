/* SPDX-License-Identifier: Apache-2.0 */

#ifndef IOUTIL_QCOW2_EXTENTS_H
#define IOUTIL_QCOW2_EXTENTS_H

#include "qcow2/chain.h"

/* The operation IOU_EXTENTS: what reads as zeros by the tables, or is a hole of a raw file below, is a hole. */
int extents_of_chain(struct op *op);

#endif
