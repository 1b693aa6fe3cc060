/* SPDX-License-Identifier: Apache-2.0 */

/* Waiting of threads and fibers for each other (waiter.c). */

#ifndef IOUTIL_BASE_WAITER_H
#define IOUTIL_BASE_WAITER_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/link.h"
#include "base/loop.h"

enum { WAITER_WAITS, WAITER_SERVED, WAITER_WOKEN };

/* A thread or a fiber that waits, alone or in a list. A list has a lock, which the user of these functions has. */
struct waiter {
    struct link link;
    atomic_int state;
    struct fiber *fiber; /* NULL: a thread, with a semaphore */
    sem_t woken;
};

/* Begin the use of a waiter by the caller, which is the one that sleeps: waiter_sleep() has to follow. */
void waiter_init(struct waiter *waiter);

/* Do so, and add it to the list. The lock is held. */
void waiter_join(struct waiter *waiter, struct link *waiters);

/* Move a waiter that has its resource to the list of those that have to be woken; or all of a list to one that is not
   initialized yet. The lock is held. */
void waiter_serve(struct waiter *waiter, struct link *served);
void waiters_serve(struct link *waiters, struct link *served);

/* Wake all waiters of the list, or one that is in none. The lock is not held. Waiters are not used after that. */
void waiters_wake(struct link *served);
void waiter_wake(struct waiter *waiter);

/* Sleep until the waiter is woken, which ends its use. False: it still waits at `until`, a time of now_ns(). */
bool waiter_sleep(struct waiter *waiter, uint64_t until);

/* Sleep so, in a list whose lock is not held, and leave the list at that time: the use of the waiter has ended then. */
bool waiter_sleep_in(struct waiter *waiter, pthread_mutex_t *lock, uint64_t until);

/* End the use of a waiter that still waits and is in no list any more, so that it will not be woken. */
void waiter_end(struct waiter *waiter);

#endif
