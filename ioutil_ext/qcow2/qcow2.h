/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An open image in the format qcow2, and the chain that it is in.
 *
 * One lock guards the state of an image in memory: tables, reference counts, and which clusters are free. It is held
 * only for short accesses to them, never during input and output or a wait. A function may release it for a while, as
 * its comment says. Then its caller must check again what it has checked before.
 */

#ifndef IOUTIL_QCOW2_QCOW2_H
#define IOUTIL_QCOW2_QCOW2_H

#include <pthread.h>

#include "base/waiter.h"
#include "image/handle.h"
#include "qcow2/format.h"

/* ---- cache.c ---------------------------------------------------------------------------------------------------- */

/* A piece of an L2 table or of a block of reference counts. Tables are read and written in such pieces. */
struct slice {
    struct link hash;
    struct link order;   /* the slice that was used last is at the end */
    struct link waiters; /* while it is read */
    uint64_t key;
    uint8_t *data;
    uint32_t pins; /* users, which may have released the lock */
    bool loading;
    bool dirty;   /* changed since the copy that a flush writes was made */
    bool writing; /* a flush is writing a copy of it */
};

struct cache {
    struct link *buckets;
    uint32_t bucket_bits;
    struct link order, spare;
    struct block *blocks; /* the memory of slices */
    uint64_t count, most, dirty;
};

/* ---- space.c ---------------------------------------------------------------------------------------------------- */

/* One bit for each cluster of the file. */
struct bits {
    uint64_t *words;
    uint64_t room; /* clusters */
};

/* Clusters that were unlinked from the tables in memory. */
struct freed {
    uint64_t first, count;
};

struct frees {
    struct freed *all;
    uint64_t count, room, clusters;
};

/* Which clusters of the file are free. */
struct space {
    struct bits used, zeros;           /* zeros: unused clusters that read as zeros */
    uint64_t tail;                     /* no cluster from here on was ever used */
    uint64_t end;                      /* the end of the file, in clusters */
    uint64_t recycled, recycled_zeros; /* free clusters before the tail; those of them that read as zeros */
    uint64_t hint;                     /* where to look for free clusters */
    bool tail_zeros;                   /* the clusters from the tail to the end read as zeros */
    bool tail_reserved;                /* and the file has space for them */
    bool growing;
    struct link waiters; /* for the end of the growth */
};

/* ---- grace.c ---------------------------------------------------------------------------------------------------- */

/* The operations that may still use a cluster that was unlinked, counted by the phase in which they looked at the
   tables. */
struct grace {
    unsigned phase;
    uint64_t active[2];
    struct link waiters; /* for clusters that may be reused */
};

/* A range of guest clusters that one operation has for itself, or an L1 entry. It is in the list of all. */
struct busy {
    struct link link, waiters;
    uint64_t first, end;
};

/* ---- flush.c ---------------------------------------------------------------------------------------------------- */

struct flushing {
    struct sharing flushes;
    int error; /* the first failure, after which no table is written any more */
    iou_syscall call;
};

/* ---- bitmap.c --------------------------------------------------------------------------------------------------- */

/* A bitmap has a bit for each 2^bits bytes of the disk, which is 1 if they have changed. Each entry of its table is for
   a cluster of bits. */
struct bitmap {
    uint64_t *table; /* as in the file, or NULL without a bitmap */
    uint32_t bits;
};

struct qcow2 {
    iou_handle *file;
    struct header header;
    uint64_t cluster;
    uint32_t cluster_bits, entry_bits, slice_bits, table_bits; /* log2; table_bits is for the entries of an L2 table */
    uint32_t count_bits;                                       /* log2 of the reference counts of a block */
    bool sparse; /* clusters may be holes of the file, although data was allocated for them */

    pthread_mutex_t lock;
    uint64_t *l1;
    bool l1_reserved;                                         /* it has space in the file, if this can be reserved */
    struct bits l1_dirty;                                     /* a bit for each 64 entries */
    uint64_t *refcount_table, refcount_blocks, refcount_room; /* room: entries of the table in the file */
    struct bits refcount_dirty, refcount_new;                 /* for 64 entries each; new blocks, not in the file yet */
    uint64_t table_offset, table_clusters;                    /* the place of the table in the file, and its size */
    bool table_moved;

    struct bitmap bitmap;
    struct cache cache;
    struct space space;
    struct frees unlinked, due, waiting; /* unlinked in memory; also in the file; still in use by operations */
    uint64_t freeing; /* clusters that are being moved from one of these lists to the next, or freed */
    struct grace grace;
    struct link busy;
    struct flushing flushing;
    iou_qcow2_counts counts;
};

/* ---- chains ----------------------------------------------------------------------------------------------------- */

struct level {
    iou_handle *file;
    struct qcow2 *format; /* or NULL for a raw file */
    uint64_t size;
};

/* Memory of clusters (buffers.c). The lock of the top guards it. */
struct buffers {
    uint64_t used; /* bytes */
    struct link waiters;
};

struct chain {
    struct image image; /* the guest's disk */
    struct buffers decoding, merging;
    uint32_t count;
    bool over_backing; /* the top's header names a backing file, which may be in this chain or not */
    struct level levels[];
};

static inline struct chain *chain_of(const iou_handle *handle) {
    return container_of(handle->image, struct chain, image);
}

#endif
