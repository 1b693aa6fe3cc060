/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Threads and fibers that wait. Each is woken once, when its wait is over. The lock of the list is not held then,
 * because the one that wakes up may need it next.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <time.h>

#include "base/waiter.h"

void waiter_init(struct waiter *waiter) {
    waiter->state = WAITER_WAITS;
    waiter->fiber = fiber_current();
    link_init(&waiter->link);
    if (!waiter->fiber)
        sem_init(&waiter->woken, 0, 0);
}

void waiter_join(struct waiter *waiter, struct link *waiters) {
    waiter_init(waiter);
    link_append(waiters, &waiter->link);
}

void waiter_serve(struct waiter *waiter, struct link *served) {
    waiter->state = WAITER_SERVED;
    link_remove(&waiter->link);
    link_append(served, &waiter->link);
}

void waiters_serve(struct link *waiters, struct link *served) {
    link_init(served);
    while (!link_empty(waiters))
        waiter_serve(container_of(waiters->next, struct waiter, link), served);
}

/* The thread that is woken may end its waiter, and the semaphore, before sem_post() returns. glibc's sem_post() does
   not use the semaphore after the wake-up. */
void waiter_wake(struct waiter *waiter) {
    struct fiber *fiber = waiter->fiber;
    waiter->state = WAITER_WOKEN;
    if (fiber)
        fiber_wake(fiber);
    else
        sem_post(&waiter->woken);
}

void waiters_wake(struct link *served) {
    while (!link_empty(served)) {
        struct waiter *waiter = container_of(link_take(served), struct waiter, link);
        waiter_wake(waiter);
    }
}

/* ---- sleeping --------------------------------------------------------------------------------------------------- */

static struct timespec time_of(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* Sleep as a thread. False: not woken until then. */
static bool sleep_until(struct waiter *waiter, uint64_t until) {
    struct timespec deadline = time_of(until);
    while (sem_clockwait(&waiter->woken, CLOCK_MONOTONIC, &deadline) == -1)
        if (errno != EINTR)
            return false;
    return true;
}

void waiter_end(struct waiter *waiter) {
    if (!waiter->fiber)
        sem_destroy(&waiter->woken);
}

/* The state is read at the end for the thread sanitizer, which does not know sem_clockwait(). */
bool waiter_sleep(struct waiter *waiter, uint64_t until) {
    while (!(waiter->fiber ? fiber_sleep(until) : sleep_until(waiter, until))) {
        if (waiter->state == WAITER_WAITS)
            return false;
        until = FOR_EVER; /* it was served, and is about to be woken */
    }
    waiter_end(waiter);
    return waiter->state == WAITER_WOKEN;
}

bool waiter_sleep_in(struct waiter *waiter, pthread_mutex_t *lock, uint64_t until) {
    if (waiter_sleep(waiter, until))
        return true;
    pthread_mutex_lock(lock);
    bool waits = waiter->state == WAITER_WAITS;
    if (waits)
        link_remove(&waiter->link);
    pthread_mutex_unlock(lock);
    if (!waits)
        return waiter_sleep(waiter, FOR_EVER);
    waiter_end(waiter);
    return false;
}

/* ---- sharing ---------------------------------------------------------------------------------------------------- */

void sharing_init(struct sharing *sharing) {
    *sharing = (struct sharing){0};
    link_init(&sharing->waiters);
}

static void await_run(struct sharing *sharing, pthread_mutex_t *lock) {
    struct waiter waiter;
    waiter_join(&waiter, &sharing->waiters);
    pthread_mutex_unlock(lock);
    waiter_sleep(&waiter, FOR_EVER);
    pthread_mutex_lock(lock);
}

bool sharing_begin(struct sharing *sharing, pthread_mutex_t *lock, uint64_t need) {
    while (sharing->running && sharing->ended < need)
        await_run(sharing, lock);
    if (sharing->ended >= need)
        return false;
    sharing->running = true;
    sharing->begun++;
    return true;
}

void sharing_end(struct sharing *sharing, pthread_mutex_t *lock, bool nothing) {
    struct link served;
    sharing->running = false;
    if (!nothing)
        sharing->ended = sharing->begun;
    waiters_serve(&sharing->waiters, &served);
    pthread_mutex_unlock(lock);
    waiters_wake(&served);
    pthread_mutex_lock(lock);
}
