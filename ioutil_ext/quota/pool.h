/* SPDX-License-Identifier: Apache-2.0 */

/* The pool of memory for the data of all lanes (pool.c): its size, its users, and the requests that wait. Each lane is
   a user. The lanes of one ticket have one quota. */

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

/* The bytes of the one piece that a long request may have. Each device may have one such request at a time. */
#define POOL_LONG (32 * MIB)

/* The memory and tasks of one ticket, and its requests that wait for memory. */
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
    bool long_taken;  /* a long READ has the memory that is not in slabs */
    struct link kept; /* unused slabs; the one used last comes first, because it is in the caches */
    uint64_t kept_size;
    struct link quotas;
    struct link waiting;        /* quotas whose requests wait for memory, in the order of turns (memory.c) */
    atomic_uint_fast32_t tasks; /* of all users, without the first task of each */
};

/* A user of the pool. */
struct memory_user {
    struct memory_pool *pool;
    struct device_slabs *slabs;
    struct limit_share *share; /* of the ticket in the limit of its device */
    struct ticket_quota *quota;
    uint64_t used; /* bytes of pieces; the lock of the pool guards it */
    /* Return whether a request of the user has to end, and so must not wait any more. Called with the lock of the pool.
     */
    bool (*cuts)(const struct memory_user *user);
};

/* Make a pool of `memory` bytes, at least IOU_LANES_MIN_MEMORY. */
void pool_init(struct memory_pool *pool, uint64_t memory);

/* Free a pool that has no users any more. */
void pool_destroy(struct memory_pool *pool);

/* Fill in the fields about memory. */
void pool_get_stats(struct memory_pool *pool, iou_lanes_stats *stats);

/* Join and leave. In between, the user has a part in its ticket's quota and in its device's memory. Returns 0 or
   -ENOMEM. */
int pool_join(struct memory_pool *pool, struct memory_user *user, const iou_lease *ticket, uint64_t device);
void pool_leave(struct memory_user *user);

/* Return whether the user's ticket may have another task, in addition to the first task of each user. */
bool pool_may_have_task(const struct memory_user *user);
void pool_add_task(struct memory_user *user);
void pool_remove_task(struct memory_user *user);

/* ---- slabs.c ---------------------------------------------------------------------------------------------------- */

/* Slabs: the memory of the pool (slabs.c), from which memory.c lends pieces. */

/* Bytes of the largest piece of memory, and of a slab, from which pieces are cut: a huge page. */
#define MEMORY_PIECE (2 * MIB)

/* A piece of page-aligned memory. `slab` is NULL for the memory of a long READ. */
struct memory {
    struct slab *slab;
    char *data;
    size_t size;
    size_t charged; /* bytes of a long READ that count as slabs */
};

/* Map memory, with huge pages if the system has some. The size is a multiple of MEMORY_PIECE. Returns NULL without
   memory. */
char *slab_map(size_t size);

/* Return the size of the smallest piece with at least `size` bytes, which are at most MEMORY_PIECE. */
size_t slab_piece(size_t size);

/* Give unused slabs back to the system. Called with the lock of the pool, or when no other thread uses them. */
void slab_free_kept(struct memory_pool *pool);

/* A user joins the memory of its device, and leaves it by slab_part(). Returns NULL without memory. Call this and the
   functions below with the lock of the pool held. */
struct device_slabs *slab_join(struct memory_pool *pool, uint64_t device);
void slab_part(struct memory_pool *pool, struct device_slabs *slabs);

struct device_limit *slab_limit(struct device_slabs *slabs);

/* Return how many more bytes of slabs a device may have. */
uint64_t slab_left(const struct memory_pool *pool, const struct device_slabs *slabs);

/* Take a piece of at least `size` bytes. Returns 0, -EAGAIN if there is none until another one is given back, or
   -ENOMEM. */
int slab_take(struct memory_pool *pool, struct device_slabs *slabs, size_t size, struct memory **memory);
void slab_put(struct memory_pool *pool, struct memory *memory);

/* Begin and end the use of memory by a long READ, of which `charged` bytes count as slabs. slab_begin_long() returns
   false if the device has a long READ already. */
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

/* A request for memory. If `waits` is set, it waits when there is none now. */
struct claimant {
    struct waiter waiter;
    struct memory_user *user;
    size_t size;
    bool waits;
    struct memory *memory;
    int error; /* 0, -ENOMEM if the system has no memory, or -ECANCELED if the request ends */
};

/*
 * Take memory of at least claimant->size bytes, if the quotas of the user, its ticket and its device allow it. Returns
 * 0, or -EAGAIN if there is none now; a claimant that waits is in the queue then. Returns -ENOMEM if the system has
 * none, -EOVERFLOW if the size is larger than any piece, or -ECANCELED if the request ends.
 */
int memory_ask(struct claimant *claimant);

/* End the wait with this error, unless the claimant has been served and is about to be woken. */
void memory_give_up(struct claimant *claimant, int error);

/* Give memory back. */
void memory_put(struct memory_user *user, struct memory *memory);

/* End the waits of requests that have to end. */
void memory_wake(struct memory_pool *pool);

#endif
