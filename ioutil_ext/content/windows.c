/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The memory of all decoders of the process, of lanes and of Python (docs/adr/0045). A decoder cannot give its memory
 * back and continue later, as a request can with memory for data. So it is ended if it waits for its peer while another
 * one needs the memory.
 *
 * Everybody gets memory by the rule of iou_may_have(), here also the first window: three large ones do not keep small
 * ones out. An owner whose decoder was ended has only a half of the memory for a while, so that the other half is free
 * for the rest if it tries again at once.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>

#include "api/ioutil.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "base/waiter.h"
#include "content/zstd.h"

/*
 * A decoder rests if it has made less than PROGRESS bytes of content in REST_NS of waiting for its peer: the same
 * limits as for a peer that does not read (LANE_PAUSE_MS in lane/socket.h). At 10 Mbit/s and a ratio of 3 it rests, at
 * 20 it does not.
 */
#define REST_NS UINT64_C(250000000)
#define PROGRESS MIB

/* The time for which an owner has only a half, after a decoder of it was ended. */
#define PENALTY_NS UINT64_C(10000000000)

/* The number of such owners. Their decoders had at most all of the memory together, which is 128 times 512 KiB. */
#define MOST_SLOW 128u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct link waiters = LINK_EMPTY(waiters); /* for memory that is given back */
static struct link windows = LINK_EMPTY(windows);
static uint64_t used;
static uint32_t slow_next; /* the place of the oldest */
static struct {
    uint64_t owner, until;
} slow[MOST_SLOW];

/* ---- the rule; the lock is held --------------------------------------------------------------------------------- */

static uint64_t used_by(uint64_t owner) {
    uint64_t sum = 0;
    for (struct link *node = windows.next; node != &windows; node = node->next) {
        const struct window *window = container_of(node, struct window, link);
        sum += window->owner == owner ? window->memory : 0;
    }
    return sum;
}

static bool is_slow(uint64_t owner, uint64_t now) {
    for (uint32_t i = 0; i < MOST_SLOW; i++)
        if (slow[i].owner == owner && slow[i].until > now)
            return true;
    return false;
}

static void note_slow(uint64_t owner, uint64_t now) {
    slow[slow_next].owner = owner;
    slow[slow_next].until = now + PENALTY_NS;
    slow_next = (slow_next + 1) % MOST_SLOW;
}

/* ---- ending others; the lock is held ---------------------------------------------------------------------------- */

static uint64_t waited(const struct window *window, uint64_t now) {
    return window->waited + (window->since && now > window->since ? now - window->since : 0);
}

/* Return the decoder of another owner that has waited longest for its peer; NULL: none rests. */
static struct window *find_resting(uint64_t owner, uint64_t now) {
    struct window *found = NULL;
    for (struct link *node = windows.next; node != &windows; node = node->next) {
        struct window *window = container_of(node, struct window, link);
        if (window->owner == owner || window->wanted || !window->since || waited(window, now) < REST_NS)
            continue;
        if (!found || waited(window, now) > waited(found, now))
            found = window;
    }
    return found;
}

/* Ask decoders that rest to end, until the owner may have its memory when they have. */
static void make_room(uint64_t owner, uint64_t own, uint64_t memory, uint64_t now) {
    uint64_t left = IOU_ZSTD_WINDOWS - used;
    struct window *window;
    for (struct link *node = windows.next; node != &windows; node = node->next) {
        window = container_of(node, struct window, link);
        left += window->wanted ? window->memory : 0;
    }
    while (!iou_may_have(own, memory, left) && (window = find_resting(owner, now))) {
        window->wanted = true;
        left += window->memory;
        note_slow(window->owner, now);
    }
}

/* Take the memory, or ask other decoders to end. */
static int take_window(struct window *window, uint64_t owner, uint64_t memory) {
    uint64_t now = now_ns(), own = used_by(owner);
    bool limited = is_slow(owner, now);
    if (!iou_may_have(own, memory, IOU_ZSTD_WINDOWS - used) || (limited && used + memory > IOU_ZSTD_WINDOWS / 2)) {
        if (!limited && iou_may_have(own, memory, IOU_ZSTD_WINDOWS - own))
            make_room(owner, own, memory, now);
        return -EAGAIN;
    }
    *window = (struct window){.owner = owner, .memory = memory};
    link_append(&windows, &window->link);
    used += memory;
    return 0;
}

/* ---- for decoders ----------------------------------------------------------------------------------------------- */

int window_take(struct window *window, uint64_t owner, uint64_t memory) {
    pthread_mutex_lock(&lock);
    int error = take_window(window, owner, memory);
    pthread_mutex_unlock(&lock);
    return error;
}

void window_put(struct window *window) {
    if (!window->memory)
        return;
    struct link served;
    pthread_mutex_lock(&lock);
    link_remove(&window->link);
    used -= window->memory;
    window->memory = 0;
    waiters_serve(&waiters, &served);
    pthread_mutex_unlock(&lock);
    waiters_wake(&served);
}

void window_rest(struct window *window) {
    pthread_mutex_lock(&lock);
    if (window->made >= PROGRESS)
        window->made = window->waited = 0;
    window->since = now_ns();
    pthread_mutex_unlock(&lock);
}

void window_go_on(struct window *window) {
    pthread_mutex_lock(&lock);
    window->waited = waited(window, now_ns());
    window->since = 0;
    pthread_mutex_unlock(&lock);
}

void window_await(uint32_t ms) {
    struct waiter waiter;
    pthread_mutex_lock(&lock);
    waiter_join(&waiter, &waiters);
    pthread_mutex_unlock(&lock);
    waiter_sleep_in(&waiter, &lock, now_ns() + ms * UINT64_C(1000000));
}

uint64_t window_total(void) {
    pthread_mutex_lock(&lock);
    uint64_t sum = used;
    pthread_mutex_unlock(&lock);
    return sum;
}
