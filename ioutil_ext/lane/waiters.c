/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Threads that wait for a scarce resource. Each is woken once, when it has the resource, and without the lock of the
 * list, for which it would have to wait next.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <time.h>

#include "lane/waiters.h"

void waiter_join(struct waiter *waiter, struct link *waiters) {
    waiter->state = WAITER_WAITS;
    sem_init(&waiter->woken, 0, 0);
    link_append(waiters, &waiter->link);
}

void waiter_serve(struct waiter *waiter, struct link *served) {
    waiter->state = WAITER_SERVED;
    link_remove(&waiter->link);
    link_append(served, &waiter->link);
}

/* A woken thread may end its waiter, and the semaphore, before sem_post() returns. glibc's sem_post() does not use the
   semaphore after the wake-up. */
void waiters_wake(struct link *served) {
    while (!link_empty(served)) {
        struct waiter *waiter = container_of(served->next, struct waiter, link);
        link_remove(&waiter->link);
        waiter->state = WAITER_WOKEN;
        sem_post(&waiter->woken);
    }
}

static struct timespec time_of(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* The state is read at the end for the thread sanitizer, which does not know sem_clockwait(). */
bool waiter_sleep(struct waiter *waiter, uint64_t until) {
    struct timespec deadline = time_of(until);
    while (sem_clockwait(&waiter->woken, CLOCK_MONOTONIC, &deadline) == -1) {
        if (errno == EINTR)
            continue;
        if (waiter->state == WAITER_WAITS)
            return false;
        deadline = time_of(UINT64_MAX); /* it was served, and is about to be woken */
    }
    sem_destroy(&waiter->woken);
    return waiter->state == WAITER_WOKEN;
}
