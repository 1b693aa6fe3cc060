/* SPDX-License-Identifier: Apache-2.0 */

/* The pool of memory, how its users join and leave it, and how many tasks they may have. */

#include <errno.h>
#include <stdlib.h>

#include "api/ioutil.h"
#include "base/numbers.h"
#include "quota/pool.h"

/*
 * The memory of a long READ of NBD whose reply must be one piece. It is outside of the slabs, and one such READ has it
 * at a time. So there is always memory for one, even if all slabs are in use. A READ of another device may use memory
 * of the slabs.
 */
#define MAX_LONG (POOL_LONG + PAGE_UNIT)

/* Most tasks of all users, and of the users of one ticket, which also has at most twice as many as are left then. A
   lane with one task does its requests one by one. */
#define MAX_ALL_TASKS 512u
#define MAX_TICKET_TASKS 128u

_Static_assert(IOU_LANES_MIN_MEMORY >= 8 * MEMORY_PIECE + 2 * PAGE_UNIT, "some slabs, and half of it for a long read");

void pool_init(struct memory_pool *pool, uint64_t memory) {
    *pool = (struct memory_pool){0};
    pool->long_limit = min_u64(MAX_LONG, memory / 2 + PAGE_UNIT); /* memory of 64 MiB is enough for the longest READ */
    pool->limit = memory - pool->long_limit;
    pthread_mutex_init(&pool->lock, NULL);
    link_init(&pool->kept);
    link_init(&pool->quotas);
    link_init(&pool->waiting);
}

void pool_destroy(struct memory_pool *pool) {
    slab_free_kept(pool);
    pthread_mutex_destroy(&pool->lock);
}

void pool_get_stats(struct memory_pool *pool, iou_lanes_stats *stats) {
    pthread_mutex_lock(&pool->lock);
    stats->limit = pool->limit;
    stats->used = pool->used - pool->kept_size;
    for (const struct link *node = pool->waiting.next; node != &pool->waiting; node = node->next)
        stats->waiting++;
    pthread_mutex_unlock(&pool->lock);
}

/* ---- joining and leaving; the lock is held ---------------------------------------------------------------------- */

/* NULL: no memory. */
static struct ticket_quota *join_quota(struct memory_pool *pool, const iou_lease *ticket) {
    struct ticket_quota *quota = NULL;
    for (struct link *node = pool->quotas.next; node != &pool->quotas && !quota; node = node->next)
        if (container_of(node, struct ticket_quota, link)->ticket == ticket)
            quota = container_of(node, struct ticket_quota, link);
    if (!quota && (quota = calloc(1, sizeof(*quota)))) {
        quota->ticket = ticket;
        link_init(&quota->waiters);
        link_append(&pool->quotas, &quota->link);
    }
    if (quota)
        quota->users++;
    return quota;
}

static void leave_quota(struct ticket_quota *quota) {
    if (--quota->users)
        return;
    link_remove(&quota->link);
    free(quota);
}

/* Leave the parts that the user has joined. */
static void leave_parts(struct memory_user *user) {
    if (user->share)
        limit_part(user->share);
    if (user->slabs)
        slab_part(user->pool, user->slabs);
    if (user->quota)
        leave_quota(user->quota);
    user->share = NULL;
}

int pool_join(struct memory_pool *pool, struct memory_user *user, const iou_lease *ticket, uint64_t device) {
    user->pool = pool;
    pthread_mutex_lock(&pool->lock);
    user->quota = join_quota(pool, ticket);
    user->slabs = user->quota ? slab_join(pool, device) : NULL;
    user->share = user->slabs ? limit_join(slab_limit(user->slabs), ticket) : NULL;
    bool joined = user->share;
    if (!joined)
        leave_parts(user);
    pthread_mutex_unlock(&pool->lock);
    return joined ? 0 : -ENOMEM;
}

void pool_leave(struct memory_user *user) {
    pthread_mutex_lock(&user->pool->lock);
    leave_parts(user);
    pthread_mutex_unlock(&user->pool->lock);
}

/* ---- tasks ------------------------------------------------------------------------------------------------------ */

bool pool_may_have_task(const struct memory_user *user) {
    uint64_t left = MAX_ALL_TASKS - min_u64(user->pool->tasks, MAX_ALL_TASKS), used = user->quota->tasks;
    return used < MAX_TICKET_TASKS && iou_may_have(used, 1, left);
}

void pool_add_task(struct memory_user *user) {
    user->pool->tasks++;
    user->quota->tasks++;
}

void pool_remove_task(struct memory_user *user) {
    user->pool->tasks--;
    user->quota->tasks--;
}
