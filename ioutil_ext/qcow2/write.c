/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The ways to write:
 *
 *   in place   into a cluster that nothing else refers to: one write, no table changes;
 *   fresh      the old content reads as zeros, and so does the new cluster: it is linked, then written in place.
 *              Nothing is copied, and a second writer of the cluster does not wait;
 *   copy       otherwise: the whole cluster is written elsewhere, then linked (copy.c).
 *
 * Changes of the same bytes come one after the other (image/admission.c); those of other bytes of a cluster do not.
 */

#include "base/numbers.h"
#include "qcow2/grace.h"
#include "qcow2/image.h"
#include "qcow2/map.h"

/* Bytes of one write: the raw engine's piece. */
#define MOST_STEP (8 * MIB)

/* Write into clusters that entries name already. zeros: all of them read as zeros. The lock is held, and released for a
   while. */
static int64_t write_linked(struct write *write, uint64_t host, uint64_t length, bool zeros) {
    struct qcow2 *q = write->q;
    unsigned phase = grace_enter(q);
    pthread_mutex_unlock(&q->lock);
    int error = write_content(write, host, length, zeros);
    pthread_mutex_lock(&q->lock);
    grace_leave(q, phase);
    return error ? error : (int64_t)length;
}

/* ---- the choice of a way ---------------------------------------------------------------------------------------- */

enum way { IN_PLACE, FRESH, COPY, ASK };

static bool is_within(const struct write *write, uint64_t start, uint64_t end, uint64_t from, uint64_t to) {
    return start >= from && min_u64(end, write->chain->image.size) <= to;
}

static enum way find_way(struct write *write, uint64_t number, const struct mapping *mapping) {
    uint64_t start = number << write->q->cluster_bits, end = start + write->q->cluster;
    if (mapping->in_place)
        return IN_PLACE;
    enum way fresh = write->no_zeros ? COPY : FRESH;
    if (mapping->kind == KIND_ZERO && !mapping->host)
        return fresh;
    if (mapping->kind != KIND_UNALLOCATED)
        return COPY;
    if (write->chain->count == 1 || is_within(write, start, end, write->zero_from, write->zero_to))
        return fresh;
    bool whole = write->pos <= start && write->pos + write->length >= min_u64(end, write->chain->image.size);
    return whole || is_within(write, start, end, write->data_from, write->data_to) ? COPY : ASK;
}

struct write_plan {
    enum way way;
    uint64_t number, count; /* guest clusters */
    uint64_t host;          /* of pos, in place */
};

/* Choose the way to write from pos on, and how far. The lock is held. */
static int make_plan(struct write *write, const struct slice *slice, struct write_plan *plan) {
    struct qcow2 *q = write->q;
    uint64_t last = (write->pos + write->length - 1) >> q->cluster_bits, number = write->pos >> q->cluster_bits;
    uint64_t most = min_u64(map_slice_rest(q, number), last + 1 - number);
    struct mapping mapping;
    int error = map_entry(q, write->op, map_get(q, slice, number), &mapping);
    if (error)
        return error;
    *plan = (struct write_plan){.way = find_way(write, number, &mapping), .number = number, .count = 1};
    plan->host = mapping.host + (write->pos & (q->cluster - 1));
    for (uint64_t host = mapping.host; plan->count < most; plan->count++) {
        error = map_entry(q, write->op, map_get(q, slice, number + plan->count), &mapping);
        if (error || find_way(write, number + plan->count, &mapping) != plan->way)
            break;
        host += q->cluster;
        if (plan->way == ASK || (plan->way == IN_PLACE && mapping.host != host))
            break;
    }
    return 0;
}

static uint64_t planned_length(const struct write *write, const struct write_plan *plan) {
    return min_u64(write->length, ((plan->number + plan->count) << write->q->cluster_bits) - write->pos);
}

/* ---- fresh clusters --------------------------------------------------------------------------------------------- */

/* Whether the entries still fit the plan, after the lock was released. */
static bool is_still(struct write *write, const struct slice *slice, const struct write_plan *plan) {
    struct write_plan now;
    return make_plan(write, slice, &now) == 0 && now.way == plan->way && now.count >= plan->count;
}

/* Returns 0 if it has to be planned again. */
static int64_t write_fresh(struct write *write, struct slice *slice, struct write_plan *plan) {
    struct qcow2 *q = write->q;
    struct taken taken;
    if (busy_wait(q, plan->number, plan->number + plan->count))
        return 0;
    int error = space_take(q, write->op, plan->count, WANT_ZEROS, &taken);
    if (error)
        return error;
    plan->count = taken.count;
    write->no_zeros = !taken.zeros;
    if (write->no_zeros || !is_still(write, slice, plan) || busy_wait(q, plan->number, plan->number + plan->count)) {
        space_give_back(q, write->op, &taken, false);
        return 0;
    }
    link_taken(q, slice, plan->number, &taken);
    uint64_t host = (taken.first << q->cluster_bits) + (write->pos & (q->cluster - 1));
    return write_linked(write, host, planned_length(write, plan), true);
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

/* Look at the files below, for the cluster of pos. The lock is held, and released for a while. */
static int ask_below(struct write *write) {
    struct qcow2 *q = write->q;
    uint64_t start = round_down(write->pos, q->cluster), end = min_u64(start + q->cluster, write->chain->image.size);
    bool zero;
    pthread_mutex_unlock(&q->lock);
    int error = chain_is_zero(write->chain, write->op, 1, start, end - start, &zero);
    pthread_mutex_lock(&q->lock);
    if (zero) {
        write->zero_from = start;
        write->zero_to = end;
    } else {
        write->data_from = start;
        write->data_to = end;
    }
    return error;
}

/* Return how many guest clusters are written elsewhere at once: those that are written as a whole, else 1. */
static uint64_t copied_at_once(const struct write *write, const struct write_plan *plan) {
    uint32_t bits = write->q->cluster_bits;
    uint64_t whole = ((write->pos + write->length) >> bits) - plan->number;
    return write->pos == plan->number << bits && whole ? min_u64(plan->count, whole) : 1;
}

static int64_t run_plan(struct write *write, struct slice *slice, struct write_plan *plan) {
    switch (plan->way) {
    case IN_PLACE:
        return write_linked(write, plan->host, planned_length(write, plan), false);
    case FRESH:
        return write_fresh(write, slice, plan);
    case COPY:
        return write_copy(write, slice, plan->number, copied_at_once(write, plan));
    default:
        return ask_below(write);
    }
}

int64_t write_step(struct write *write) {
    struct qcow2 *q = write->q;
    struct slice *slice;
    struct write_plan plan;
    int64_t done = 0;
    write->length = min_u64(write->length, MOST_STEP);
    pthread_mutex_lock(&q->lock);
    while (done == 0) {
        done = link_need_table(q, write->op, write->pos >> q->cluster_bits);
        if (!done)
            done = map_slice(q, write->op, write->pos >> q->cluster_bits, &slice);
        if (done)
            break;
        done = make_plan(write, slice, &plan);
        if (!done)
            done = run_plan(write, slice, &plan);
        cache_put(slice);
    }
    pthread_mutex_unlock(&q->lock);
    return done;
}
