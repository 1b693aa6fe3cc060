/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The quotas of memory for the data of all users, and the queue of requests that wait. Memory is given out in pieces of
 * slabs (slabs.c); a long READ has memory of its own.
 *
 * A ticket that has memory gets more by the rule of iou_may_have(). Tickets with waiting requests take turns; the
 * requests of one ticket are served in order of arrival.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "api/ioutil.h"
#include "base/numbers.h"
#include "quota/pool.h"

/* Most bytes of a user that has more than one piece. With more, data has left the caches before it is sent. */
#define USER_MOST (16 * MIB)

/* ---- pieces; the lock is held ----------------------------------------------------------------------------------- */

/* Whether the user's ticket may have another piece of this size. */
static bool ticket_may_have(const struct memory_user *user, size_t piece) {
    uint64_t left = slab_left(user->pool, user->slabs), used = user->quota->used;
    return used == 0 || iou_may_have(used, piece, left);
}

/* Whether the user may have it: at most three quarters of what its ticket may have. Each user may have one piece. */
static bool user_may_have(const struct memory_user *user, size_t piece) {
    uint64_t left = slab_left(user->pool, user->slabs);
    uint64_t most = min_u64((user->quota->used + left) / 2, USER_MOST);
    return user->used == 0 || user->used + piece <= most;
}

/* Take a piece of a slab. -EAGAIN: there is none until another one is given back; -ENOMEM. */
static int take_slab_piece(struct memory_user *user, size_t size, struct memory **memory) {
    if (!ticket_may_have(user, slab_piece(size)))
        return -EAGAIN;
    int error = slab_take(user->pool, user->slabs, size, memory);
    if (error)
        return error;
    user->used += (*memory)->size;
    user->quota->used += (*memory)->size;
    return 0;
}

static void put_piece(struct memory_user *user, struct memory *memory) {
    user->used -= memory->size;
    user->quota->used -= memory->size;
    slab_put(user->pool, memory);
}

/* ---- long READs ------------------------------------------------------------------------------------------------- */

static struct memory *new_long(size_t size, size_t charged) {
    struct memory *memory = malloc(sizeof(*memory));
    if (!memory)
        return NULL;
    *memory = (struct memory){.data = slab_map(size), .size = size, .charged = charged};
    if (memory->data)
        return memory;
    free(memory);
    return NULL;
}

static void free_long(struct memory *memory) {
    munmap(memory->data, memory->size);
    free(memory);
}

/* The first one has the memory outside of the slabs. While it has that, others take bytes of the slabs' limit, by the
   rule of iou_may_have(). So one that hangs stops only those of its device. The lock is held. */
static int take_long(struct memory_user *user, size_t size, struct memory **memory) {
    struct memory_pool *pool = user->pool;
    size = round_up(size, MEMORY_PIECE); /* munmap(2) needs the end of a page, which may be a huge one */
    size_t charged = pool->long_taken ? size : 0;
    if (charged && !iou_may_have(user->quota->used, charged, slab_left(pool, user->slabs)))
        return -EAGAIN;
    if (!slab_begin_long(pool, user->slabs, charged))
        return -EAGAIN;
    struct memory *taken = new_long(size, charged);
    if (!taken) {
        slab_end_long(pool, user->slabs, charged);
        return -ENOMEM;
    }
    user->quota->used += charged;
    pool->long_taken |= !charged;
    *memory = taken;
    return 0;
}

/* The lock is held. */
static void put_long(struct memory_user *user, size_t charged) {
    slab_end_long(user->pool, user->slabs, charged);
    user->quota->used -= charged;
    user->pool->long_taken &= charged > 0;
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

static bool is_long(size_t size) {
    return size > MEMORY_PIECE;
}

/*
 * Take memory if the quotas allow it now. -EAGAIN: they do not; *blocks: the later requests of this ticket cannot have
 * memory either. The lock is held.
 */
static int take_allowed(struct claimant *claimant, bool *blocks) {
    struct memory_user *user = claimant->user;
    *blocks = false;
    if (is_long(claimant->size))
        return take_long(user, claimant->size, &claimant->memory);
    if (!user_may_have(user, slab_piece(claimant->size)))
        return -EAGAIN;
    int error = take_slab_piece(user, claimant->size, &claimant->memory);
    *blocks = error == -EAGAIN;
    return error;
}

static void end_wait(struct claimant *claimant, int error, struct link *served) {
    claimant->error = error;
    waiter_serve(&claimant->waiter, served);
}

/* Serve the first request of a ticket that can have its memory now. The lock is held. */
static bool serve_one(struct ticket_quota *quota, struct link *served) {
    bool blocks = false;
    for (struct link *node = quota->waiters.next; node != &quota->waiters && !blocks; node = node->next) {
        struct claimant *claimant = container_of(node, struct claimant, waiter.link);
        int error = take_allowed(claimant, &blocks);
        if (error != -EAGAIN) {
            end_wait(claimant, error, served);
            return true;
        }
    }
    return false;
}

/* Serve waiting requests as far as there is memory. A ticket that was served goes to the end. The lock is held. */
static void serve_waiting(struct memory_pool *pool, struct link *served) {
    for (struct link *node = pool->waiting.next, *next; node != &pool->waiting; node = next) {
        struct ticket_quota *quota = container_of(node, struct ticket_quota, turn);
        next = node->next;
        if (!serve_one(quota, served))
            continue;
        link_remove(&quota->turn);
        if (link_empty(&quota->waiters))
            continue;
        link_append(&pool->waiting, &quota->turn);
        next = next == &pool->waiting ? &quota->turn : next;
    }
}

/* End the waits of a ticket's requests that have to end. The lock is held. */
static void release_cut(struct ticket_quota *quota, struct link *served) {
    for (struct link *node = quota->waiters.next, *next; node != &quota->waiters; node = next) {
        struct claimant *claimant = container_of(node, struct claimant, waiter.link);
        next = node->next;
        if (claimant->user->cuts(claimant->user))
            end_wait(claimant, -ECANCELED, served);
    }
    if (link_empty(&quota->waiters))
        link_remove(&quota->turn);
}

void memory_wake(struct memory_pool *pool) {
    struct link served = LINK_EMPTY(served);
    pthread_mutex_lock(&pool->lock);
    for (struct link *node = pool->waiting.next, *next; node != &pool->waiting; node = next) {
        next = node->next;
        release_cut(container_of(node, struct ticket_quota, turn), &served);
    }
    serve_waiting(pool, &served); /* requests that were behind them may need less */
    pthread_mutex_unlock(&pool->lock);
    waiters_wake(&served);
}

/* Enter the queue, and serve it: earlier requests need not be in the way. -EAGAIN: it waits. The lock is held. */
static int begin_to_wait(struct claimant *claimant, struct link *served) {
    struct ticket_quota *quota = claimant->user->quota;
    /* Under the lock: after a later change of state, memory_wake() takes the lock and finds the claimant. */
    if (claimant->user->cuts(claimant->user))
        return -ECANCELED;
    if (link_empty(&quota->waiters))
        link_append(&claimant->user->pool->waiting, &quota->turn);
    waiter_join(&claimant->waiter, &quota->waiters);
    serve_waiting(claimant->user->pool, served);
    return -EAGAIN;
}

void memory_give_up(struct claimant *claimant, int error) {
    struct memory_pool *pool = claimant->user->pool;
    struct ticket_quota *quota = claimant->user->quota;
    struct link served = LINK_EMPTY(served);
    pthread_mutex_lock(&pool->lock);
    if (claimant->waiter.state == WAITER_WAITS) {
        end_wait(claimant, error, &served);
        if (link_empty(&quota->waiters))
            link_remove(&quota->turn);
        serve_waiting(pool, &served);
    }
    pthread_mutex_unlock(&pool->lock);
    waiters_wake(&served);
}

/* ---- for requests ----------------------------------------------------------------------------------------------- */

int memory_ask(struct claimant *claimant) {
    struct memory_user *user = claimant->user;
    struct memory_pool *pool = user->pool;
    struct link served = LINK_EMPTY(served);
    bool blocks;
    if (claimant->size > pool->long_limit)
        return -EOVERFLOW;
    if (user->cuts(user))
        return -ECANCELED;
    pthread_mutex_lock(&pool->lock);
    int error = link_empty(&user->quota->waiters) ? take_allowed(claimant, &blocks) : -EAGAIN;
    if (error == -EAGAIN && claimant->waits)
        error = begin_to_wait(claimant, &served);
    pthread_mutex_unlock(&pool->lock);
    waiters_wake(&served);
    return error;
}

void memory_put(struct memory_user *user, struct memory *memory) {
    struct memory_pool *pool = user->pool;
    bool whole = !memory->slab;
    size_t charged = memory->charged;
    struct link served = LINK_EMPTY(served);
    if (whole)
        free_long(memory);
    pthread_mutex_lock(&pool->lock);
    if (whole)
        put_long(user, charged);
    else
        put_piece(user, memory);
    serve_waiting(pool, &served);
    pthread_mutex_unlock(&pool->lock);
    waiters_wake(&served);
}
