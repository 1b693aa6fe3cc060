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

/* Get a slice, and pin it. Its table or block exists, and `host` is its place in the file. Releases the lock while it
   reads the slice. Returns 0 or the error of the read, with the lock held. */
int cache_get(struct qcow2 *q, struct op *op, uint64_t key, uint64_t host, struct slice **slice);

/* Return the slice if it is in memory, else NULL. It is not pinned. */
const struct slice *cache_peek(struct qcow2 *q, uint64_t key);

static inline void cache_put(struct slice *slice) {
    slice->pins--;
}

void cache_dirty(struct qcow2 *q, struct slice *slice);

/* ---- map.c ------------------------------------------------------------------------------------------------------ */

enum kind {
    KIND_UNALLOCATED, /* the files below have the content */
    KIND_ZERO,
    KIND_DATA,
    KIND_COMPRESSED
};

struct mapping {
    enum kind kind;
    bool in_place;   /* data: nothing else refers to the cluster */
    uint64_t host;   /* the place of data; for zeros the reserved cluster, or 0 */
    uint64_t entry;  /* the entry of the first cluster */
    uint64_t length; /* bytes of the run */
};

/* Find the mapping at `pos`, and its length, at most `length`. Its data is contiguous in the file, or one compressed
   cluster. May release the lock before it looks. Returns 0, or -EIO if the entry is invalid. */
int map_find(struct qcow2 *q, struct op *op, uint64_t pos, uint64_t length, struct mapping *mapping);

/* Pin the slice that has the entry of a guest's cluster. Stores NULL if there is no table for it. May release the lock.
 */
int map_slice(struct qcow2 *q, struct op *op, uint64_t number, struct slice **slice);

/* Get the kind of a standard entry. Returns 0, or -EIO if it is invalid. */
int map_entry(struct qcow2 *q, struct op *op, uint64_t entry, struct mapping *mapping);

/* Note an invalid entry. Returns -EIO. */
int map_corrupt(struct qcow2 *q, struct op *op);

/* Return from a compressed entry the most bytes of its data, and store in *offset where the data begins. */
static inline uint64_t map_compressed(const struct qcow2 *q, uint64_t entry, uint64_t *offset) {
    uint32_t bits = 62 - (q->cluster_bits - 8);
    uint64_t sectors = (entry & (ENTRY_COMPRESSED - 1)) >> bits;
    *offset = entry & ((UINT64_C(1) << bits) - 1);
    return (sectors + 1) * 512 - *offset % 512;
}

/* Return how many entries follow in a slice, from that of a cluster on. */
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

/* Make sure that a guest's cluster has an L2 table that no snapshot uses. Releases the lock for a while if it makes
   one. */
int link_need_table(struct qcow2 *q, struct op *op, uint64_t number);

/* Note that the tables do not name the clusters of an entry any more. */
void link_drop(struct qcow2 *q, uint64_t entry);

/* Let entries name taken clusters in place of their earlier ones. */
void link_taken(struct qcow2 *q, struct slice *slice, uint64_t number, const struct taken *taken);

#endif
