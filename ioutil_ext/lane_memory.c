/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Memory for the data of all lanes: what each may have, and waiting for it. It comes in pieces of slabs (lane_slabs.c);
 * a long read has one of its own.
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
    link_init(&lanes->waiters);
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

int memory_join(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    pthread_mutex_lock(&lanes->lock);
    lane->borrower = slab_join(lanes, lane->handle->image->device);
    if (lane->borrower) {
        lane->depth = slab_depth(lane->borrower);
        lanes->count++;
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
    slab_part(lanes, lane->borrower);
    pthread_mutex_unlock(&lanes->lock);
}

/* ---- pieces; the lock is held ----------------------------------------------------------------------------------- */

static int take_piece(struct iou_lane *lane, size_t size, struct memory **memory) {
    if (lane->lent && lane->lent + slab_piece(size) > LANE_MOST)
        return -EAGAIN;
    int error = slab_take(lane->lanes, lane->borrower, size, memory);
    if (!error)
        lane->lent += (*memory)->size;
    return error;
}

static void put_piece(struct iou_lane *lane, struct memory *memory) {
    lane->lent -= memory->size;
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

/* Let those who wait have what they can, in the order in which they came; nobody waits longer than his lane. The lock
   is held. */
static void serve(struct iou_lanes *lanes, struct link *served) {
    link_init(served);
    for (struct link *node = lanes->waiters.next, *next; node != &lanes->waiters; node = next) {
        struct claimant *claimant = container_of(node, struct claimant, waiter.link);
        next = node->next;
        if (lane_cuts(claimant->lane) || take(claimant->lane, claimant->size, &claimant->memory) != -EAGAIN)
            waiter_serve(&claimant->waiter, served);
    }
}

/* Wait for others to give back, but no longer than the request may go on. The lock is held; it is released. */
static struct memory *await_memory(struct iou_lane *lane, size_t size) {
    struct claimant claimant = {.lane = lane, .size = size};
    waiter_join(&claimant.waiter, &lane->lanes->waiters);
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
