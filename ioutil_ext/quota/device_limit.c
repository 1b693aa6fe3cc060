/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The limit on the bytes that lanes have under way on a device at a time. More than the device needs to be busy only
 * make each operation take longer. If they also end together, nothing can be sent or received meanwhile: on a virtio
 * disk, 64 reads of nbdcopy, 256 KiB each, began together and ended together 5.5 ms later. So long reads and writes
 * wait here for earlier ones.
 *
 * A device serves a ticket with more operations under way more often. So while several tickets use it, each has the
 * same limit of its own, however many connections it has, and those that wait are served in turns.
 */

#include <stdlib.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "quota/device_limit.h"

/*
 * Bytes that keep a fast disk busy. A C program read 512 MiB in 0.20 s with 16 reads of 256 KiB at a time, in 0.19 s
 * with 32, in 0.22 s with 4, and in 0.18 s with one read of 2 MiB at a time.
 */
#define DEPTH (4 * MIB)

/*
 * A device whose mean duration is longer does less than 1.4 GB/s: it is remote, or slow anyway. It has no limit for a
 * while, and is measured again afterwards.
 */
#define FAR_NS UINT64_C(3000000)
#define UNLIMITED_NS UINT64_C(1000000000)

/*
 * Bytes of one ticket that may be under way while another one uses the device, too: it has operations under way, or has
 * had them so lately that a connection may be about to send or receive the next piece. A connection has up to two
 * pieces under way. One beside eight of another ticket, through a device of 200 MiB/s: 30 % of it, and 11 to 23 %
 * without; docs/adr/0032 has all.
 */
#define SHARE (DEPTH / 2)
#define LATELY_NS UINT64_C(20000000)

/* If nothing ends for this time, operations under way seem to hang, and do not count any more: all, or those of a
   ticket. */
#define PATIENCE_NS UINT64_C(100000000)
#define SHARE_PATIENCE_NS UINT64_C(1000000000)

/* The weight of the moving mean: the latest durations count most. */
#define MEAN_WEIGHT 8u

void limit_init(struct device_limit *limit) {
    *limit = (struct device_limit){0};
    pthread_mutex_init(&limit->lock, NULL);
    link_init(&limit->shares);
    link_init(&limit->turns);
}

void limit_destroy(struct device_limit *limit) {
    pthread_mutex_destroy(&limit->lock);
}

/* ---- shares ----------------------------------------------------------------------------------------------------- */

/* The lock is held. */
static struct limit_share *find_share(struct device_limit *limit, const iou_lease *ticket) {
    for (struct link *node = limit->shares.next; node != &limit->shares; node = node->next)
        if (container_of(node, struct limit_share, link)->ticket == ticket)
            return container_of(node, struct limit_share, link);
    struct limit_share *share = calloc(1, sizeof(*share));
    if (share) {
        share->limit = limit;
        share->ticket = ticket;
        link_init(&share->turn);
        link_init(&share->waiters);
        link_append(&limit->shares, &share->link);
    }
    return share;
}

struct limit_share *limit_join(struct device_limit *limit, const iou_lease *ticket) {
    pthread_mutex_lock(&limit->lock);
    struct limit_share *share = find_share(limit, ticket);
    if (share)
        share->lanes++;
    pthread_mutex_unlock(&limit->lock);
    return share;
}

void limit_part(struct limit_share *share) {
    struct device_limit *limit = share->limit;
    pthread_mutex_lock(&limit->lock);
    bool unused = --share->lanes == 0;
    if (unused) {
        link_remove(&share->link);
        limit->users -= share->used ? 1u : 0u;
        limit->paused = limit->paused == share ? NULL : limit->paused;
    }
    pthread_mutex_unlock(&limit->lock);
    if (unused)
        free(share);
}

/* ---- the lock is held ------------------------------------------------------------------------------------------- */

/* Whether another ticket than this one uses the device. */
static bool is_shared(const struct limit_share *share, uint64_t now) {
    const struct device_limit *limit = share->limit;
    return limit->users > (share->used ? 1u : 0u) || (limit->paused != share && now - limit->paused_at < LATELY_NS);
}

/* Whether the ticket has its part of a device that others use, too. */
static bool has_its_part(const struct limit_share *share, uint64_t length, uint64_t now) {
    return share->used && share->used + length > SHARE && is_shared(share, now);
}

static bool device_has_room(const struct device_limit *limit, uint64_t length, uint64_t now) {
    return limit->used + length <= DEPTH || now < limit->unlimited_until;
}

/* Change what a ticket has under way. */
static void change_use(struct limit_share *share, uint64_t used, uint64_t now) {
    struct device_limit *limit = share->limit;
    limit->users += (used ? 1u : 0u) - (share->used ? 1u : 0u);
    share->used = used;
    if (!used) {
        limit->paused = share;
        limit->paused_at = now;
    }
}

static void begin_use(struct limit_share *share, struct limit_use *use, uint64_t now) {
    struct device_limit *limit = share->limit;
    limit->moved_at = limit->used ? limit->moved_at : now;
    share->moved_at = share->used ? share->moved_at : now;
    limit->used += use->length;
    change_use(share, share->used + use->length, now);
    use->epoch = limit->epoch;
    use->share_epoch = share->epoch;
}

/* Begin the first operation of a share that waits, and give the turn to the next share. */
static void serve_share(struct limit_share *share, struct link *admitted, uint64_t now) {
    struct limit_use *use = container_of(share->waiters.next, struct limit_use, waiter.link);
    begin_use(share, use, now);
    waiter_serve(&use->waiter, admitted);
    link_remove(&share->turn);
    if (!link_empty(&share->waiters))
        link_append(&share->limit->turns, &share->turn);
}

static uint64_t next_length(const struct limit_share *share) {
    return container_of(share->waiters.next, struct limit_use, waiter.link)->length;
}

/* Return the share whose turn it is: the first one that waits and does not have its part. NULL: there is none. */
static struct limit_share *whose_turn(const struct device_limit *limit, uint64_t now) {
    for (struct link *node = limit->turns.next; node != &limit->turns; node = node->next) {
        struct limit_share *share = container_of(node, struct limit_share, turn);
        if (!has_its_part(share, next_length(share), now))
            return share;
    }
    return NULL;
}

static void admit(struct device_limit *limit, struct link *admitted) {
    uint64_t now = now_ns();
    struct limit_share *share;
    link_init(admitted);
    while ((share = whose_turn(limit, now)) && device_has_room(limit, next_length(share), now))
        serve_share(share, admitted, now);
}

/* Add a duration to the mean. Operations that began without the limit take longer, and do not count. */
static void note(struct device_limit *limit, const struct limit_use *use, uint64_t now) {
    if (use->since < limit->unlimited_until)
        return;
    limit->mean_ns = (limit->mean_ns * (MEAN_WEIGHT - 1) + now - use->since) / MEAN_WEIGHT;
    if (limit->mean_ns > FAR_NS) {
        limit->unlimited_until = now + UNLIMITED_NS;
        limit->mean_ns = 0;
    }
}

/* Stop counting operations that seem to hang. */
static void write_off(struct limit_share *share, uint64_t now) {
    struct device_limit *limit = share->limit;
    if (now - limit->moved_at >= PATIENCE_NS) {
        limit->epoch++;
        limit->used = 0;
    }
    if (now - share->moved_at >= SHARE_PATIENCE_NS) {
        share->epoch++;
        change_use(share, 0, now);
    }
}

/* ---- for operations --------------------------------------------------------------------------------------------- */

/* Stop counting operations that hang, after a wait of PATIENCE_NS, so that others do not wait for them. */
static void look_at_limit(struct limit_share *share) {
    struct device_limit *limit = share->limit;
    struct link admitted;
    pthread_mutex_lock(&limit->lock);
    write_off(share, now_ns());
    admit(limit, &admitted);
    pthread_mutex_unlock(&limit->lock);
    waiters_wake(&admitted);
}

/* Whether an operation begins at once: nobody waits whose turn comes first. The lock is held. */
static bool may_begin(const struct limit_share *share, uint64_t length, uint64_t now) {
    const struct device_limit *limit = share->limit;
    return link_empty(&share->waiters) && !has_its_part(share, length, now) && device_has_room(limit, length, now) &&
           !whose_turn(limit, now);
}

/* The lock is held. */
static void join(struct limit_share *share, struct limit_use *use) {
    if (link_empty(&share->waiters))
        link_append(&share->limit->turns, &share->turn);
    waiter_join(&use->waiter, &share->waiters);
}

void limit_enter(struct limit_share *share, struct limit_use *use) {
    struct device_limit *limit = share->limit;
    pthread_mutex_lock(&limit->lock);
    uint64_t now = now_ns();
    bool admitted = may_begin(share, use->length, now);
    if (admitted)
        begin_use(share, use, now);
    else
        join(share, use);
    pthread_mutex_unlock(&limit->lock);
    while (!admitted && !(admitted = waiter_sleep(&use->waiter, now_ns() + PATIENCE_NS)))
        look_at_limit(share);
    use->since = now_ns();
}

void limit_leave(struct limit_share *share, const struct limit_use *use) {
    struct device_limit *limit = share->limit;
    struct link admitted;
    uint64_t now = now_ns();
    pthread_mutex_lock(&limit->lock);
    if (use->epoch == limit->epoch)
        limit->used -= use->length;
    if (use->share_epoch == share->epoch)
        change_use(share, share->used - use->length, now);
    limit->moved_at = share->moved_at = now;
    note(limit, use, now);
    admit(limit, &admitted);
    pthread_mutex_unlock(&limit->lock);
    waiters_wake(&admitted);
}
