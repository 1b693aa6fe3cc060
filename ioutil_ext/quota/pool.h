/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The pool of memory for the data of all lanes (pool.c): what there is, who uses it, and who waits. A lane is a user;
 * the lanes of one ticket have one quota.
 */

#ifndef IOUTIL_QUOTA_POOL_H
#define IOUTIL_QUOTA_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/lane.h"
#include "base/link.h"
#include "base/numbers.h"
#include "base/waiter.h"
#include "quota/device_limit.h"

/* A request may have one piece of so many bytes. One request of each device has one at a time. */
#define POOL_LONG (32 * MIB)

/* What one ticket has of memory and tasks, and its requests that wait for memory. */
struct ticket_quota {
    struct link link;           /* in pool->quotas */
    struct link turn;           /* in pool->waiting, while a request waits */
    const iou_lease *ticket;    /* identifies the ticket */
    uint64_t used;              /* bytes of pieces */
    atomic_uint_fast32_t tasks; /* without the first task of each user */
    uint32_t users;
    struct link waiters; /* in order of arrival */
};

struct memory_pool {
    pthread_mutex_t lock;
    struct device_slabs *devices;
    uint64_t limit, used; /* of slabs */
    uint64_t long_limit;
    bool long_taken;  /* what there is beside slabs for one long READ */
    struct link kept; /* unused slabs; the one used last comes first, because it is in the caches */
    uint64_t kept_size;
    struct link quotas;
    struct link waiting;        /* quotas with requests that wait for memory, in the order of turns; memory.c */
    atomic_uint_fast32_t tasks; /* of all users, without the first one of each */
};

/* A user of the pool. */
struct memory_user {
    struct memory_pool *pool;
    struct device_slabs *slabs;
    struct limit_share *share; /* of the ticket in what its device does at a time */
    struct ticket_quota *quota;
    uint64_t used; /* bytes of pieces; under the lock of the pool */
    /* Whether a request of the user has to end, so that it does not wait any more. Called with the lock of the pool. */
    bool (*cuts)(const struct memory_user *user);
};

/* memory: bytes, at least IOU_LANES_MIN_MEMORY. */
void pool_init(struct memory_pool *pool, uint64_t memory);

/* There is no user any more. */
void pool_destroy(struct memory_pool *pool);

/* Fill in what is about memory. */
void pool_get_stats(struct memory_pool *pool, iou_lanes_stats *stats);

/* Join and leave: the user has a part in its ticket's quota and in its device's memory. -ENOMEM. */
int pool_join(struct memory_pool *pool, struct memory_user *user, const iou_lease *ticket, uint64_t device);
void pool_leave(struct memory_user *user);

/* Whether the user's ticket may have another task beside the first one of each user. */
bool pool_may_have_task(const struct memory_user *user);
void pool_add_task(struct memory_user *user);
void pool_remove_task(struct memory_user *user);

/* ---- slabs.c ---------------------------------------------------------------------------------------------------- */

/* Slabs: the memory of the pool (slabs.c), from which memory.c lends pieces. */

/* Bytes of the largest piece of memory, and of a slab, from which pieces are cut: a huge page. */
#define MEMORY_PIECE (2 * MIB)

/* A piece of page-aligned memory. slab: NULL: memory of a long READ. */
struct memory {
    struct slab *slab;
    char *data;
    size_t size;
    size_t charged; /* bytes of a long READ that count as slabs */
};

/* Map memory, of huge pages if the system has some. size: a multiple of MEMORY_PIECE. NULL: no memory. */
char *slab_map(size_t size);

/* Return the size of the smallest piece that has so many bytes, at most MEMORY_PIECE. */
size_t slab_piece(size_t size);

/* Give unused slabs back to the system. Called with the lock of the pool, or when no other thread uses them. */
void slab_free_kept(struct memory_pool *pool);

/* The lock of the pool is held from here on. A user joins the memory of its device, and leaves it. NULL: no memory. */
struct device_slabs *slab_join(struct memory_pool *pool, uint64_t device);
void slab_part(struct memory_pool *pool, struct device_slabs *slabs);

struct device_limit *slab_limit(struct device_slabs *slabs);

/* Return how many further bytes of slabs a device may have. */
uint64_t slab_left(const struct memory_pool *pool, const struct device_slabs *slabs);

/* Take a piece of at least size bytes. -EAGAIN: there is none until another one is given back; -ENOMEM. */
int slab_take(struct memory_pool *pool, struct device_slabs *slabs, size_t size, struct memory **memory);
void slab_put(struct memory_pool *pool, struct memory *memory);

/* Begin and end the use of memory by a long READ, of which so many bytes count as slabs. False: the device has one. */
bool slab_begin_long(struct memory_pool *pool, struct device_slabs *device, size_t charged);
void slab_end_long(struct memory_pool *pool, struct device_slabs *device, size_t charged);

/* ---- memory.c --------------------------------------------------------------------------------------------------- */

/* Pieces of memory for the data of requests, by the quotas of users, and the queue of requests that wait (memory.c). */

/* Data has the same offset in a page of memory as in the image, so that direct I/O need not copy whole blocks.
   room_for() returns the bytes of memory that this takes. */
static inline char *place_in(const struct memory *memory, uint64_t offset) {
    return memory->data + offset % PAGE_UNIT;
}

static inline uint64_t room_for(uint64_t offset, uint64_t length) {
    return offset % PAGE_UNIT + length;
}

/* A request for memory. waits: it waits if there is none now. */
struct claimant {
    struct waiter waiter;
    struct memory_user *user;
    size_t size;
    bool waits;
    struct memory *memory;
    int error; /* 0; -ENOMEM: the system has no memory; -ECANCELED: the request ends */
};

/*
 * Take memory of at least size bytes, if the quotas of the user, its ticket and its device allow it. -EAGAIN: there is
 * none now; if it waits, it is in the queue. -ENOMEM: the system has none; -EOVERFLOW: size is larger than any piece
 * can be; -ECANCELED: the request ends.
 */
int memory_ask(struct claimant *claimant);

/* End the wait with error, unless the claimant was served meanwhile and is about to be woken. */
void memory_give_up(struct claimant *claimant, int error);

/* Give memory back. */
void memory_put(struct memory_user *user, struct memory *memory);

/* End the waits of requests that have to end. */
void memory_wake(struct memory_pool *pool);

#endif
