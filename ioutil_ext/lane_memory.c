/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Memory for the data of all lanes: what each may have, and waiting for it. It comes in pieces of slabs (lane_slabs.c);
 * a long read has one of its own.
 *
 * A ticket that has some gets more only as long as it then has no more than twice what is left: so there is always
 * something left for another one. A single ticket has two thirds of all at most, and n of them share 2 n parts of
 * 2 n + 1. (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998, is about
 * this rule.) Among those who wait, tickets take turns; requests of one ticket are served in their order.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "lane_slabs.h"
#include "lane_waiters.h"

/*
 * One READ of NBD at a time may have more, if its reply may not be cut: it has memory of its own, which is all that
 * those who ask for such can keep from each other.
 */
#define MAX_LONG (LANE_LONG + PAGE_UNIT)

_Static_assert(IOU_LANES_MIN_MEMORY >= 8 * LANE_PIECE + 2 * PAGE_UNIT, "some slabs, and half of it for a long read");

/* What one lane may have at a time, if it has more than one piece: longer queues leave the caches before they are sent.
 */
#define LANE_MOST (16 * MIB)

/* ---- all -------------------------------------------------------------------------------------------------------- */

int iou_lanes_new(iou_engine *engine, uint64_t memory, iou_lanes **result) {
    if (engine_is_foreign(engine))
        return -ECHILD;
    if (memory < IOU_LANES_MIN_MEMORY || memory > INT64_MAX || !result)
        return -EINVAL;
    iou_lanes *lanes = calloc(1, sizeof(*lanes));
    if (!lanes)
        return -ENOMEM;
    lanes->engine = engine;
    lanes->born = fork_generation();
    lanes->long_limit = min_u64(MAX_LONG, memory / 2 + PAGE_UNIT); /* 64 MiB is enough for the longest */
    lanes->limit = memory - lanes->long_limit;
    link_init(&lanes->kept);
    pthread_mutex_init(&lanes->lock, NULL);
    link_init(&lanes->shares);
    link_init(&lanes->waiting);
    *result = lanes;
    return 0;
}

int iou_lanes_free(iou_lanes *lanes) {
    if (lanes_are_foreign(lanes))
        return -ECHILD;
    pthread_mutex_lock(&lanes->lock);
    bool busy = lanes->count;
    pthread_mutex_unlock(&lanes->lock);
    if (busy)
        return -EBUSY;
    slab_free_kept(lanes);
    pthread_mutex_destroy(&lanes->lock);
    free(lanes);
    return 0;
}

/* ---- lanes come and go ------------------------------------------------------------------------------------------ */

/* The lock is held. NULL: no memory. */
static struct share *join_share(struct iou_lanes *lanes, const iou_lease *ticket) {
    struct share *share = NULL;
    for (struct link *node = lanes->shares.next; node != &lanes->shares && !share; node = node->next)
        if (container_of(node, struct share, link)->ticket == ticket)
            share = container_of(node, struct share, link);
    if (!share && (share = calloc(1, sizeof(*share)))) {
        share->ticket = ticket;
        link_init(&share->waiters);
        link_append(&lanes->shares, &share->link);
    }
    if (share)
        share->lanes++;
    return share;
}

/* The lock is held. */
static void part_share(struct share *share) {
    if (--share->lanes)
        return;
    link_remove(&share->link);
    free(share);
}

int memory_join(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    pthread_mutex_lock(&lanes->lock);
    lane->share = join_share(lanes, lane->lease);
    lane->borrower = lane->share ? slab_join(lanes, lane->handle->image->device) : NULL;
    if (lane->borrower) {
        lane->depth = slab_depth(lane->borrower);
        lanes->count++;
    } else if (lane->share) {
        part_share(lane->share);
    }
    pthread_mutex_unlock(&lanes->lock);
    return lane->borrower ? 0 : -ENOMEM;
}

void memory_part(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    if (!lane->borrower)
        return;
    pthread_mutex_lock(&lanes->lock);
    lanes->count--;
    part_share(lane->share);
    slab_part(lanes, lane->borrower);
    pthread_mutex_unlock(&lanes->lock);
}

/* ---- pieces; the lock is held ----------------------------------------------------------------------------------- */

/*
 * Whether the lane may have so many bytes more: it has three quarters of what its ticket may have at most, which has
 * twice what is left after that. Each may have one piece.
 */
static bool may_have(const struct iou_lane *lane, size_t piece) {
    uint64_t left = slab_left(lane->lanes, lane->borrower), tickets = lane->share->lent;
    uint64_t most = min_u64((tickets + left) / 2, LANE_MOST);
    if (tickets && tickets + piece + 2 * piece > 2 * left)
        return false;
    return lane->lent == 0 || lane->lent + piece <= most;
}

static int take_piece(struct iou_lane *lane, size_t size, struct memory **memory) {
    if (!may_have(lane, slab_piece(size)))
        return -EAGAIN;
    int error = slab_take(lane->lanes, lane->borrower, size, memory);
    if (error)
        return error;
    lane->lent += (*memory)->size;
    lane->share->lent += (*memory)->size;
    return 0;
}

static void put_piece(struct iou_lane *lane, struct memory *memory) {
    lane->lent -= memory->size;
    lane->share->lent -= memory->size;
    slab_put(lane->lanes, memory);
}

/* ---- long ones -------------------------------------------------------------------------------------------------- */

/* The lock is held. */
static int take_long(struct iou_lanes *lanes, size_t size, struct memory **memory) {
    if (lanes->long_taken)
        return -EAGAIN;
    struct memory *taken = malloc(sizeof(*taken));
    if (!taken)
        return -ENOMEM;
    size = round_up(size, LANE_PIECE); /* munmap(2) ends at a page, which may be long */
    *taken = (struct memory){NULL, slab_map(size), size};
    if (!taken->data) {
        free(taken);
        return -ENOMEM;
    }
    lanes->long_taken = true;
    *memory = taken;
    return 0;
}

static void free_long(struct memory *memory) {
    munmap(memory->data, memory->size);
    free(memory);
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

/* A request that waits. */
struct claimant {
    struct waiter waiter;
    struct iou_lane *lane;
    size_t size;
    struct memory *memory; /* NULL: none comes */
};

/* -EAGAIN: there is none for now. The lock is held. */
static int take(struct iou_lane *lane, size_t size, struct memory **memory) {
    return size > LANE_PIECE ? take_long(lane->lanes, size, memory) : take_piece(lane, size, memory);
}

/* Serve the first request of a ticket that can be; nobody waits longer than his lane. The lock is held. */
static bool serve_one(struct share *share, struct link *served) {
    for (struct link *node = share->waiters.next; node != &share->waiters; node = node->next) {
        struct claimant *claimant = container_of(node, struct claimant, waiter.link);
        if (lane_cuts(claimant->lane) || take(claimant->lane, claimant->size, &claimant->memory) != -EAGAIN) {
            waiter_serve(&claimant->waiter, served);
            return true;
        }
    }
    return false;
}

/* Let those who wait have what they can. A ticket that was served goes behind the others. The lock is held. */
static void serve(struct iou_lanes *lanes, struct link *served) {
    link_init(served);
    for (struct link *node = lanes->waiting.next; node != &lanes->waiting;) {
        struct share *share = container_of(node, struct share, turn);
        node = node->next;
        if (!serve_one(share, served))
            continue;
        link_remove(&share->turn);
        if (!link_empty(&share->waiters))
            link_append(&lanes->waiting, &share->turn);
        node = lanes->waiting.next;
    }
}

/* Wait for others to give back, but no longer than the request may go on. The lock is held; it is released. */
static struct memory *await_memory(struct iou_lane *lane, size_t size) {
    struct claimant claimant = {.lane = lane, .size = size};
    struct share *share = lane->share;
    if (link_empty(&share->waiters))
        link_append(&lane->lanes->waiting, &share->turn);
    waiter_join(&claimant.waiter, &share->waiters);
    pthread_mutex_unlock(&lane->lanes->lock);
    while (!waiter_sleep(&claimant.waiter,
                         lane->kind->finishes ? UINT64_MAX : __atomic_load_n(&lane->lease->expires, __ATOMIC_RELAXED)))
        memory_wake(lane->lanes); /* unless the lease was renewed, this one is woken, too */
    return claimant.memory;
}

struct memory *memory_get(struct iou_lane *lane, size_t size, bool wait) {
    struct iou_lanes *lanes = lane->lanes;
    struct memory *memory = NULL;
    if (size > LANE_PIECE && size > lanes->long_limit)
        return NULL;
    pthread_mutex_lock(&lanes->lock);
    if (!lane_cuts(lane) && take(lane, size, &memory) == -EAGAIN && wait)
        return await_memory(lane, size);
    pthread_mutex_unlock(&lanes->lock);
    return memory;
}

void memory_put(struct iou_lane *lane, struct memory *memory) {
    struct iou_lanes *lanes = lane->lanes;
    bool is_long = !memory->slab;
    struct link served;
    if (is_long)
        free_long(memory);
    pthread_mutex_lock(&lanes->lock);
    if (is_long)
        lanes->long_taken = false;
    else
        put_piece(lane, memory);
    serve(lanes, &served);
    pthread_mutex_unlock(&lanes->lock);
    waiters_wake(&served);
}

void memory_wake(struct iou_lanes *lanes) {
    struct link served;
    pthread_mutex_lock(&lanes->lock);
    serve(lanes, &served);
    pthread_mutex_unlock(&lanes->lock);
    waiters_wake(&served);
}
