/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The layout of a new image, in which each cluster has a reference count of 1 (layout.c): header | table of reference
 * counts | their blocks | L1 table | L2 tables | data. The content of the tables is computed from it, 512 bytes at a
 * time.
 */

#ifndef IOUTIL_QCOW2_LAYOUT_H
#define IOUTIL_QCOW2_LAYOUT_H

#include "qcow2/format.h"

enum { HEADER_LENGTH = 112, REFCOUNT_ORDER = 4 };

struct layout {
    uint64_t size; /* bytes of the disk, whole sectors */
    uint32_t cluster_bits;
    bool extended;
    uint64_t cluster, l1_entries;
    uint64_t table, blocks, l1, l2, data, clusters; /* the clusters of each part, and of all */
};

/* Begin with the disk. Returns 0, -EINVAL, or -EFBIG if clusters are too small for it. */
int layout_begin(struct layout *layout, uint64_t size, uint32_t cluster_bits, bool extended);

/* Place `l2` L2 tables and `data` clusters of data, fewer than 2^40. */
void layout_place(struct layout *layout, uint64_t l2, uint64_t data);

/* Fill in the header. The memory has only zeros. */
void layout_fill_header(const struct layout *layout, uint8_t *header);

/* Fill in a sector of the table of reference counts or of their blocks. The memory has only zeros. Other sectors stay
   as they are. */
void layout_fill_counts(const struct layout *layout, uint64_t sector, uint8_t *data);

/* Return where the L1 table, the L2 tables and the data begin. */
static inline uint64_t layout_l1(const struct layout *layout) {
    return (1 + layout->table + layout->blocks) << layout->cluster_bits;
}

static inline uint64_t layout_l2(const struct layout *layout) {
    return layout_l1(layout) + (layout->l1 << layout->cluster_bits);
}

static inline uint64_t layout_data(const struct layout *layout) {
    return layout_l2(layout) + (layout->l2 << layout->cluster_bits);
}

#endif
