/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The quotas of memory for the data of all lanes, and the queue of requests that wait. Memory is given out in pieces of
 * slabs (slabs.c); a long READ has memory of its own.
 *
 * A ticket that has memory gets more only if it then has at most twice as much as is left. So some memory is always
 * left for another ticket. A single ticket has at most two thirds of all, and n tickets share 2 n parts of 2 n + 1.
 * (The rule is from Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998.)
 * Tickets with waiting requests take turns; the requests of one ticket are served in order of arrival.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/numbers.h"
#include "lane/lane.h"

/* Most bytes of a lane that has more than one piece. With more, data has left the caches before it is sent. */
#define LANE_MOST (16 * MIB)

/* ---- pieces; the lock is held ----------------------------------------------------------------------------------- */

/* Whether the lane's ticket may have another piece of this size: at most twice as much as is left then. */
static bool ticket_may_have(const struct iou_lane *lane, size_t piece) {
    uint64_t left = slab_left(lane->lanes, lane->memory.slabs), used = lane->memory.quota->used;
    return used == 0 || used + piece + 2 * piece <= 2 * left;
}

/* Whether the lane may have it: at most three quarters of what its ticket may have. Each lane may have one piece. */
static bool lane_may_have(const struct iou_lane *lane, size_t piece) {
    uint64_t left = slab_left(lane->lanes, lane->memory.slabs);
    uint64_t most = min_u64((lane->memory.quota->used + left) / 2, LANE_MOST);
    return lane->memory.used == 0 || lane->memory.used + piece <= most;
}

/* Take a piece of a slab. -EAGAIN: there is none until another one is given back; -ENOMEM. */
static int take_piece(struct iou_lane *lane, size_t size, struct memory **memory) {
    if (!ticket_may_have(lane, slab_piece(size)))
        return -EAGAIN;
    int error = slab_take(lane->lanes, lane->memory.slabs, size, memory);
    if (error)
        return error;
    lane->memory.used += (*memory)->size;
    lane->memory.quota->used += (*memory)->size;
    return 0;
}

static void put_piece(struct iou_lane *lane, struct memory *memory) {
    lane->memory.used -= memory->size;
    lane->memory.quota->used -= memory->size;
    slab_put(lane->lanes, memory);
}

/* ---- long READs ------------------------------------------------------------------------------------------------- */

/* The lock is held. */
static int take_long(struct iou_lanes *lanes, size_t size, struct memory **memory) {
    if (lanes->long_taken)
        return -EAGAIN;
    struct memory *taken = malloc(sizeof(*taken));
    if (!taken)
        return -ENOMEM;
    size = round_up(size, LANE_PIECE); /* munmap(2) needs the end of a page, which may be a huge one */
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

static bool is_long(size_t size) {
    return size > LANE_PIECE;
}

/*
 * Take memory if the quotas allow it now. -EAGAIN: they do not; *blocks: the later requests of this ticket cannot have
 * memory either. The lock is held.
 */
static int take(struct claimant *claimant, bool *blocks) {
    struct iou_lane *lane = claimant->lane;
    *blocks = false;
    if (is_long(claimant->size))
        return take_long(lane->lanes, claimant->size, &claimant->memory);
    if (!lane_may_have(lane, slab_piece(claimant->size)))
        return -EAGAIN;
    int error = take_piece(lane, claimant->size, &claimant->memory);
    *blocks = error == -EAGAIN;
    return error;
}

static void leave(struct claimant *claimant, int error, struct link *served) {
    claimant->error = error;
    waiter_serve(&claimant->waiter, served);
}

/* Serve the first request of a ticket that can have its memory now. The lock is held. */
static bool serve_one(struct ticket_quota *quota, struct link *served) {
    bool blocks = false;
    for (struct link *node = quota->waiters.next; node != &quota->waiters && !blocks; node = node->next) {
        struct claimant *claimant = container_of(node, struct claimant, waiter.link);
        int error = take(claimant, &blocks);
        if (error != -EAGAIN) {
            leave(claimant, error, served);
            return true;
        }
    }
    return false;
}

/* Serve waiting requests as far as there is memory. A ticket that was served goes to the end. The lock is held. */
static void serve(struct iou_lanes *lanes, struct link *served) {
    for (struct link *node = lanes->waiting.next, *next; node != &lanes->waiting; node = next) {
        struct ticket_quota *quota = container_of(node, struct ticket_quota, turn);
        next = node->next;
        if (!serve_one(quota, served))
            continue;
        link_remove(&quota->turn);
        if (link_empty(&quota->waiters))
            continue;
        link_append(&lanes->waiting, &quota->turn);
        next = next == &lanes->waiting ? &quota->turn : next;
    }
}

/* End the waits of a ticket's requests whose lane has ended them. The lock is held. */
static void release_cut(struct ticket_quota *quota, struct link *served) {
    for (struct link *node = quota->waiters.next, *next; node != &quota->waiters; node = next) {
        struct claimant *claimant = container_of(node, struct claimant, waiter.link);
        next = node->next;
        if (lane_cuts(claimant->lane))
            leave(claimant, -ECANCELED, served);
    }
    if (link_empty(&quota->waiters))
        link_remove(&quota->turn);
}

void memory_wake(struct iou_lanes *lanes) {
    struct link served;
    link_init(&served);
    pthread_mutex_lock(&lanes->lock);
    for (struct link *node = lanes->waiting.next, *next; node != &lanes->waiting; node = next) {
        next = node->next;
        release_cut(container_of(node, struct ticket_quota, turn), &served);
    }
    serve(lanes, &served); /* requests that were behind them may need less */
    pthread_mutex_unlock(&lanes->lock);
    waiters_wake(&served);
}

/* Enter the queue, and serve it: earlier requests need not be in the way. -EAGAIN: it waits. The lock is held. */
static int begin_to_wait(struct claimant *claimant, struct link *served) {
    struct ticket_quota *quota = claimant->lane->memory.quota;
    /* Under the lock: after a later change of state, memory_wake() takes the lock and finds the claimant. */
    if (lane_cuts(claimant->lane))
        return -ECANCELED;
    if (link_empty(&quota->waiters))
        link_append(&claimant->lane->lanes->waiting, &quota->turn);
    waiter_join(&claimant->waiter, &quota->waiters);
    serve(claimant->lane->lanes, served);
    return -EAGAIN;
}

void memory_give_up(struct claimant *claimant, int error) {
    struct iou_lanes *lanes = claimant->lane->lanes;
    struct ticket_quota *quota = claimant->lane->memory.quota;
    struct link served;
    link_init(&served);
    pthread_mutex_lock(&lanes->lock);
    if (claimant->waiter.state == WAITER_WAITS) {
        leave(claimant, error, &served);
        if (link_empty(&quota->waiters))
            link_remove(&quota->turn);
        serve(lanes, &served);
    }
    pthread_mutex_unlock(&lanes->lock);
    waiters_wake(&served);
}

/* ---- for requests ----------------------------------------------------------------------------------------------- */

int memory_ask(struct claimant *claimant) {
    struct iou_lane *lane = claimant->lane;
    struct iou_lanes *lanes = lane->lanes;
    struct link served;
    bool blocks;
    link_init(&served);
    if (claimant->size > lanes->long_limit)
        return -EOVERFLOW;
    if (lane_cuts(lane))
        return -ECANCELED;
    pthread_mutex_lock(&lanes->lock);
    int error = link_empty(&lane->memory.quota->waiters) ? take(claimant, &blocks) : -EAGAIN;
    if (error == -EAGAIN && claimant->patience != MEMORY_NOW)
        error = begin_to_wait(claimant, &served);
    pthread_mutex_unlock(&lanes->lock);
    waiters_wake(&served);
    return error;
}

void memory_put(struct iou_lane *lane, struct memory *memory) {
    struct iou_lanes *lanes = lane->lanes;
    bool whole = !memory->slab;
    struct link served;
    link_init(&served);
    if (whole)
        free_long(memory);
    pthread_mutex_lock(&lanes->lock);
    if (whole)
        lanes->long_taken = false;
    else
        put_piece(lane, memory);
    serve(lanes, &served);
    pthread_mutex_unlock(&lanes->lock);
    waiters_wake(&served);
}
