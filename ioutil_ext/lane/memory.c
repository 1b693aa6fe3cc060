/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Memory for the data of all lanes: what each may have, and waiting for it. It comes in pieces of slabs (slabs.c);
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

#include "base/numbers.h"
#include "lane/lane.h"

/* What one lane may have at a time, if it has more than one piece: longer queues leave the caches before they are sent.
 */
#define LANE_MOST (16 * MIB)

/* ---- pieces; the lock is held ----------------------------------------------------------------------------------- */

/* Whether its ticket may have such a piece besides those it has: at most twice what is left then. */
static bool ticket_may_have(const struct iou_lane *lane, size_t piece) {
    uint64_t left = slab_left(lane->lanes, lane->memory.slabs), lent = lane->memory.share->lent;
    return lent == 0 || lent + piece + 2 * piece <= 2 * left;
}

/* The same of a lane: three quarters of what its ticket may have at most. Each may have one piece. */
static bool lane_may_have(const struct iou_lane *lane, size_t piece) {
    uint64_t left = slab_left(lane->lanes, lane->memory.slabs);
    uint64_t most = min_u64((lane->memory.share->lent + left) / 2, LANE_MOST);
    return lane->memory.lent == 0 || lane->memory.lent + piece <= most;
}

/* -EAGAIN: there is none before another one is given back; -ENOMEM. */
static int take_piece(struct iou_lane *lane, size_t size, struct memory **memory) {
    if (!ticket_may_have(lane, slab_piece(size)))
        return -EAGAIN;
    int error = slab_take(lane->lanes, lane->memory.slabs, size, memory);
    if (error)
        return error;
    lane->memory.lent += (*memory)->size;
    lane->memory.share->lent += (*memory)->size;
    return 0;
}

static void put_piece(struct iou_lane *lane, struct memory *memory) {
    lane->memory.lent -= memory->size;
    lane->memory.share->lent -= memory->size;
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

static bool is_long(size_t size) {
    return size > LANE_PIECE;
}

/*
 * Take it if it can be had now. -EAGAIN: it cannot be; *blocks: nor can anything that requests of this ticket wait for
 * behind it. The lock is held.
 */
static int take(struct iou_lane *lane, size_t size, struct memory **memory, bool *blocks) {
    *blocks = false;
    if (is_long(size))
        return take_long(lane->lanes, size, memory);
    if (!lane_may_have(lane, slab_piece(size)))
        return -EAGAIN;
    int error = take_piece(lane, size, memory);
    *blocks = error == -EAGAIN;
    return error;
}

static void leave(struct claimant *claimant, int error, struct link *served) {
    claimant->error = error;
    waiter_serve(&claimant->waiter, served);
}

/* Serve the first request of a ticket that can be. The lock is held. */
static bool serve_one(struct share *share, struct link *served) {
    bool blocks = false;
    for (struct link *node = share->waiters.next; node != &share->waiters && !blocks; node = node->next) {
        struct claimant *claimant = container_of(node, struct claimant, waiter.link);
        int error = take(claimant->lane, claimant->size, &claimant->memory, &blocks);
        if (error != -EAGAIN) {
            leave(claimant, error, served);
            return true;
        }
    }
    return false;
}

/* Let those who wait have what they can. A ticket that was served goes behind the others. The lock is held. */
static void serve(struct iou_lanes *lanes, struct link *served) {
    for (struct link *node = lanes->waiting.next, *next; node != &lanes->waiting; node = next) {
        struct share *share = container_of(node, struct share, turn);
        next = node->next;
        if (!serve_one(share, served))
            continue;
        link_remove(&share->turn);
        if (link_empty(&share->waiters))
            continue;
        link_append(&lanes->waiting, &share->turn);
        next = next == &lanes->waiting ? &share->turn : next;
    }
}

/* Let those go of a ticket that need nothing any more. The lock is held. */
static void release_cut(struct share *share, struct link *served) {
    for (struct link *node = share->waiters.next, *next; node != &share->waiters; node = next) {
        struct claimant *claimant = container_of(node, struct claimant, waiter.link);
        next = node->next;
        if (lane_cuts(claimant->lane))
            leave(claimant, -ECANCELED, served);
    }
    if (link_empty(&share->waiters))
        link_remove(&share->turn);
}

void memory_wake(struct iou_lanes *lanes) {
    struct link served;
    link_init(&served);
    pthread_mutex_lock(&lanes->lock);
    for (struct link *node = lanes->waiting.next, *next; node != &lanes->waiting; node = next) {
        next = node->next;
        release_cut(container_of(node, struct share, turn), &served);
    }
    serve(lanes, &served); /* those behind them may need less */
    pthread_mutex_unlock(&lanes->lock);
    waiters_wake(&served);
}

/* Those before it may not keep it from anything. -EAGAIN: it waits. The lock is held. */
static int begin_to_wait(struct claimant *claimant, struct link *served) {
    struct share *share = claimant->lane->memory.share;
    if (lane_cuts(claimant->lane)) /* whoever cuts it wakes those who wait, under this lock */
        return -ECANCELED;
    if (link_empty(&share->waiters))
        link_append(&claimant->lane->lanes->waiting, &share->turn);
    waiter_join(&claimant->waiter, &share->waiters);
    serve(claimant->lane->lanes, served);
    return -EAGAIN;
}

void memory_give_up(struct claimant *claimant, int error) {
    struct iou_lanes *lanes = claimant->lane->lanes;
    struct share *share = claimant->lane->memory.share;
    struct link served;
    link_init(&served);
    pthread_mutex_lock(&lanes->lock);
    if (claimant->waiter.state == WAITER_WAITS) {
        leave(claimant, error, &served);
        if (link_empty(&share->waiters))
            link_remove(&share->turn);
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
    if (is_long(claimant->size) && claimant->size > lanes->long_limit)
        return -EOVERFLOW;
    if (lane_cuts(lane))
        return -ECANCELED;
    pthread_mutex_lock(&lanes->lock);
    int error =
        link_empty(&lane->memory.share->waiters) ? take(lane, claimant->size, &claimant->memory, &blocks) : -EAGAIN;
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
