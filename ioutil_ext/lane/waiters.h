/* SPDX-License-Identifier: Apache-2.0 */

/* Waiting for a resource that lanes share (waiters.c). */

#ifndef IOUTIL_LANE_WAITERS_H
#define IOUTIL_LANE_WAITERS_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/link.h"

enum { WAITER_WAITS, WAITER_SERVED, WAITER_WOKEN };

/* A thread that waits in a list. The list has a lock, which the user of these functions has. */
struct waiter {
    struct link link;
    atomic_int state;
    sem_t woken;
};

/* Add a waiter to the list. The lock is held. */
void waiter_join(struct waiter *waiter, struct link *waiters);

/* Move a waiter that has its resource to the list of those that have to be woken. The lock is held. */
void waiter_serve(struct waiter *waiter, struct link *served);

/* Wake all waiters of the list. The lock is not held. */
void waiters_wake(struct link *served);

/* Sleep until the waiter is woken, which ends its use. False: it still waits at `until`, a time of now_ns(). */
bool waiter_sleep(struct waiter *waiter, uint64_t until);

#endif
