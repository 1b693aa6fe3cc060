/* SPDX-License-Identifier: Apache-2.0 */

/* The plan of an image that has a disk's data in the order of the disk (plan.c). Each byte of the image that is not
   data is computed from the plan. The plan has a bit for each cluster of the disk. */

#ifndef IOUTIL_QCOW2_PLAN_H
#define IOUTIL_QCOW2_PLAN_H

#include "qcow2/layout.h"

/* An L2 table: its number in the disk, and how many clusters of data lie before its first one. */
struct planned_table {
    uint64_t number, before;
};

struct plan {
    struct layout layout;
    uint64_t size, told;          /* bytes of the disk, and how many of them plan_tell() has described */
    uint64_t *bits, words;        /* which clusters have data */
    struct planned_table *tables; /* layout.l2 tables, and one more at the end */
};

/* Begin with a disk of which nothing is known. Returns 0, -EINVAL, -EFBIG if it has too many clusters, or -ENOMEM. */
int plan_begin(struct plan *plan, uint64_t size, uint32_t cluster_bits);
void plan_free(struct plan *plan);

/* Add the next bytes of the disk, up to `end`: they are data, or read as zeros. Returns 0, or -EINVAL if `end` goes
   back, or is past the end of the disk. */
int plan_tell(struct plan *plan, uint64_t end, bool data);

/* Place everything when the whole disk was described. Returns 0, -ENODATA if it was not, -EINVAL if this was called
   before, or -ENOMEM. */
int plan_place(struct plan *plan);

/* Fill memory with the bytes that are before the data. */
void plan_fill(const struct plan *plan, uint64_t offset, uint64_t length, char *memory);

/* Find the place in the disk of the byte at an offset in the data. Returns how many bytes follow each other there, at
   most `most`. */
uint64_t plan_find(const struct plan *plan, uint64_t offset, uint64_t most, uint64_t *place);

#endif
