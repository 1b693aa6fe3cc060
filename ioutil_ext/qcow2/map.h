/* SPDX-License-Identifier: Apache-2.0 */

/* From the guest's clusters to those of the file (map.c). The image's lock is held. */

#ifndef IOUTIL_QCOW2_MAP_H
#define IOUTIL_QCOW2_MAP_H

#include "qcow2/qcow2.h"
#include "qcow2/space.h"

/* ---- cache.c ---------------------------------------------------------------------------------------------------- */

/* Slices of tables, in bounded memory (cache.c). The image's lock is held, unless it says otherwise. */

/* Keys: slices of L2 tables count through the guest's disk, as those of a bitmap, those of reference counts through the
   file. */
#define KEY_COUNTS (UINT64_C(1) << 63)
#define KEY_BITMAP (UINT64_C(1) << 62)

int cache_init(struct qcow2 *q);
void cache_destroy(struct qcow2 *q);

/*
 * Get a slice, and pin it. Its table or block exists. Lets go of the lock to read it. host: where it is in the file. An
 * error is of the read, with the lock held again.
 */
int cache_get(struct qcow2 *q, struct op *op, uint64_t key, uint64_t host, struct slice **slice);

/* The slice if it is in memory, else NULL; it is not pinned. */
const struct slice *cache_peek(struct qcow2 *q, uint64_t key);

static inline void cache_put(struct slice *slice) {
    slice->pins--;
}

void cache_dirty(struct qcow2 *q, struct slice *slice);

/* ---- map.c ------------------------------------------------------------------------------------------------------ */

enum kind {
    KIND_UNALLOCATED, /* the files below say what is there */
    KIND_ZERO,
    KIND_DATA,
    KIND_COMPRESSED
};

struct mapping {
    enum kind kind;
    bool in_place;   /* data: nobody else has the cluster */
    uint64_t host;   /* of data: where it is; of zeros: the cluster that is reserved, 0: none */
    uint64_t entry;  /* of the first cluster */
    uint64_t length; /* bytes of the run */
};

/*
 * Find what is at pos, and how far it goes, at most `length` bytes: data as long as it is contiguous in the file, one
 * cluster if it is compressed. May let go of the lock before it looks. -EIO: the entry cannot be right.
 */
int map_find(struct qcow2 *q, struct op *op, uint64_t pos, uint64_t length, struct mapping *mapping);

/* Pin the slice that has the entry of a guest's cluster; NULL: there is no table for it. May let go of the lock. */
int map_slice(struct qcow2 *q, struct op *op, uint64_t number, struct slice **slice);

/* The kind of a standard entry. -EIO: it cannot be right. */
int map_entry(struct qcow2 *q, struct op *op, uint64_t entry, struct mapping *mapping);

/* Note an entry that cannot be right. Returns -EIO. */
int map_corrupt(struct qcow2 *q, struct op *op);

/* What a compressed entry says: where its data begins, and how many bytes it has at most. */
static inline uint64_t map_compressed(const struct qcow2 *q, uint64_t entry, uint64_t *offset) {
    uint32_t bits = 62 - (q->cluster_bits - 8);
    uint64_t sectors = (entry & (ENTRY_COMPRESSED - 1)) >> bits;
    *offset = entry & ((UINT64_C(1) << bits) - 1);
    return (sectors + 1) * 512 - *offset % 512;
}

/* How many entries the rest of a slice has, from that of a cluster on. */
static inline uint64_t map_slice_rest(const struct qcow2 *q, uint64_t number) {
    uint64_t entries = UINT64_C(1) << (q->slice_bits - q->entry_bits);
    return entries - (number & (entries - 1));
}

static inline uint8_t *map_place(const struct qcow2 *q, const struct slice *slice, uint64_t number) {
    uint64_t entries = UINT64_C(1) << (q->slice_bits - q->entry_bits);
    return slice->data + ((number & (entries - 1)) << q->entry_bits);
}

static inline uint64_t map_get(const struct qcow2 *q, const struct slice *slice, uint64_t number) {
    return get64(map_place(q, slice, number));
}

static inline void map_put(struct qcow2 *q, struct slice *slice, uint64_t number, uint64_t entry) {
    put64(map_place(q, slice, number), entry);
    cache_dirty(q, slice);
}

static inline uint64_t map_l1(const struct qcow2 *q, uint64_t number) {
    return be64toh(q->l1[number >> q->table_bits]);
}

/* ---- link.c ----------------------------------------------------------------------------------------------------- */

/* Changing the tables of the guest's clusters in memory (link.c). The image's lock is held. */

/* Make sure that a guest's cluster has an L2 table that no snapshot uses. Lets go of the lock if it makes one. */
int link_need_table(struct qcow2 *q, struct op *op, uint64_t number);

/* Note that the tables do not name the clusters of an entry any more. */
void link_drop(struct qcow2 *q, uint64_t entry);

/* Let entries name taken clusters, in place of what they named before. */
void link_taken(struct qcow2 *q, struct slice *slice, uint64_t number, const struct taken *taken);

#endif
