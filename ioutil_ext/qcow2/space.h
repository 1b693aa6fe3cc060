/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The space of the file (space.c): clusters are taken, and given back. The image's lock is held; all functions with an
 * operation may let go of it.
 */

#ifndef IOUTIL_QCOW2_SPACE_H
#define IOUTIL_QCOW2_SPACE_H

#include "qcow2/qcow2.h"

/* Clusters that follow each other, each with a reference count of 1. */
struct taken {
    uint64_t first, count;
    bool zeros; /* they read as zeros, and will after a loss of power */
};

/* zeros: those that read as zeros, if there are some. tail: those behind all others. */
enum wanted { WANT_ANY, WANT_ZEROS, WANT_TAIL };

/* Take at most so many clusters, at least one. -ENOSPC. */
int space_take(struct qcow2 *q, struct op *op, uint64_t count, enum wanted wanted, struct taken *taken);

/* Give back clusters to which no entry has ever referred. written: they were written to, or may have been. */
void space_give_back(struct qcow2 *q, struct op *op, const struct taken *taken, bool written);

/* Free clusters whose count is 0, and which nobody uses. */
void space_free(struct qcow2 *q, uint64_t first, uint64_t count, bool zeros);

/* Give the table of reference counts a longer place in the file if it has got too many entries. */
int space_move_table(struct qcow2 *q, struct op *op);

#endif
