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
#include <stdint.h>

#include "api/lane.h"
#include "base/link.h"

/* A request may have one piece of so many bytes. One request of all users has one at a time. */
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
    bool long_taken;
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

#endif
