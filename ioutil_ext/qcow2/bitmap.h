/* SPDX-License-Identifier: Apache-2.0 */

/* The bitmap of an image that tells what has changed (bitmap.c). Only images that are open for reading have one. */

#ifndef IOUTIL_QCOW2_BITMAP_H
#define IOUTIL_QCOW2_BITMAP_H

#include "qcow2/qcow2.h"

/*
 * Find a bitmap by its name, and read its table. verdict->bitmap gets what became of it. -EUCLEAN, with the reason: the
 * directory, or what the bitmap says of itself, cannot be right. Blocks; no lock is held.
 */
int bitmap_open(struct op *op, struct qcow2 *q, const char *name, iou_qcow2_verdict *verdict);

/* Runs that are found at a time. */
#define CHANGES 64u

/* Runs that follow each other, each of what the one before is not: changed, or as it was. */
struct changes {
    bool dirty;           /* whether the next one has changed */
    uint32_t next, count; /* of ends */
    uint64_t ends[CHANGES];
};

/*
 * Find the run that pos is in, and some that follow, at most to `end`. The image's lock is held; may let go of it.
 * -EIO: the table cannot be right.
 */
int bitmap_find(struct qcow2 *q, struct op *op, uint64_t pos, uint64_t end, struct changes *changes);

#endif
