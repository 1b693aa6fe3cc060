/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The plan of an image that has a disk's data in the order of the disk (plan.c): each byte of it, but for the data, is
 * computed of what the disk has where. The plan itself is a bit for each cluster of the disk.
 */

#ifndef IOUTIL_QCOW2_PLAN_H
#define IOUTIL_QCOW2_PLAN_H

#include "qcow2/layout.h"

/* An L2 table: which of the disk's, and how many clusters of data lie before its first one. */
struct planned_table {
    uint64_t number, before;
};

struct plan {
    struct layout layout;
    uint64_t size, told;          /* bytes of the disk, and those of which is known what is there */
    uint64_t *bits, words;        /* which clusters have data */
    struct planned_table *tables; /* layout.l2 of them, and one behind them */
};

/* Begin with a disk of which nothing is known. -EINVAL; -EFBIG: it has too many clusters; -ENOMEM. */
int plan_begin(struct plan *plan, uint64_t size, uint32_t cluster_bits);
void plan_free(struct plan *plan);

/* Tell that what follows, up to `end`, is data or reads as zeros. -EINVAL: it goes back, or past the end of the disk.
 */
int plan_tell(struct plan *plan, uint64_t end, bool data);

/* Place all. -ENODATA: not all of the disk is known; -EINVAL: it is placed; -ENOMEM. */
int plan_place(struct plan *plan);

/* Fill memory with what is before the data. */
void plan_fill(const struct plan *plan, uint64_t offset, uint64_t length, char *memory);

/* Find the place in the disk of the byte at an offset in the data, and how many bytes follow it there; at most `most`.
 */
uint64_t plan_find(const struct plan *plan, uint64_t offset, uint64_t most, uint64_t *place);

#endif
