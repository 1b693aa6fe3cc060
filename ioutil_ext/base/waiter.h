/* SPDX-License-Identifier: Apache-2.0 */

/* Waiters: threads and fibers that wait for each other (waiter.c). */

#ifndef IOUTIL_BASE_WAITER_H
#define IOUTIL_BASE_WAITER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/link.h"
#include "base/loop.h"

enum { WAITER_WAITS, WAITER_SERVED, WAITER_WOKEN };

/* A thread or a fiber that waits, alone or in a list. The user of a list has a lock for it. */
struct waiter {
    struct link link;
    atomic_int state;
    struct fiber *fiber; /* or NULL for a thread, which uses the semaphore */
    sem_t woken;
};

/* Begin to use a waiter. The caller then has to call waiter_sleep(). */
void waiter_init(struct waiter *waiter);

/* Begin to use a waiter, and add it to the list. Call this with the lock held. */
void waiter_join(struct waiter *waiter, struct link *waiters);

/* Move a waiter that has got its resource to a list of waiters to wake. waiters_serve() moves all of a list to a list
   that is not initialized yet. Call these with the lock held. */
void waiter_serve(struct waiter *waiter, struct link *served);
void waiters_serve(struct link *waiters, struct link *served);

/* Wake all waiters of the list, or one that is in no list. Call these without the lock. They do not use the waiters
   after that. */
void waiters_wake(struct link *served);
void waiter_wake(struct waiter *waiter);

/* Sleep until the waiter is woken, which ends its use. Returns false if it still waits at `until`, a time of now_ns().
 */
bool waiter_sleep(struct waiter *waiter, uint64_t until);

/* Do the same for a waiter in a list. At `until` this also takes the lock, removes the waiter from the list and ends
   its use. Call this without the lock. */
bool waiter_sleep_in(struct waiter *waiter, pthread_mutex_t *lock, uint64_t until);

/* End the use of a waiter that still waits but is in no list any more, so nobody will wake it. */
void waiter_end(struct waiter *waiter);

/* ---- sharing ---------------------------------------------------------------------------------------------------- */

/* Runs that callers share, as those of fdatasync(2). There is one at a time, and all callers that come while it runs
   share the next one. The user has a lock. Call these functions with the lock held. */
struct sharing {
    bool running;
    uint64_t begun, ended; /* numbers of the last runs */
    struct link waiters;   /* for the end of the run that is under way */
};

void sharing_init(struct sharing *sharing);

/* Return the number of the run that the caller needs: one that begins after this call. */
static inline uint64_t sharing_need(const struct sharing *sharing) {
    return sharing->begun + 1;
}

/* Begin a run. Returns false if the run that the caller needs has ended already. Releases the lock while it waits for
   the run that is under way. */
bool sharing_begin(struct sharing *sharing, pthread_mutex_t *lock, uint64_t need);

/* End the run, and release the lock for a while. Pass `nothing` if it has done nothing: those that share it then need
   another one. */
void sharing_end(struct sharing *sharing, pthread_mutex_t *lock, bool nothing);

#endif
