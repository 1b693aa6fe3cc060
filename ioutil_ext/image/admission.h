/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Claims: the ranges of an image that changes use (admission.c). The lock of claims may be taken while the engine's is
 * held. No other lock is taken while the lock of claims is held.
 */

#ifndef IOUTIL_IMAGE_ADMISSION_H
#define IOUTIL_IMAGE_ADMISSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct op;

struct range {
    uint64_t start, end; /* empty when equal */
};

/*
 * The claim of a write, zero or trim that runs, or that waits for earlier changes which it overlaps. Claims are taken
 * in order of arrival, and kept until storage has released the operation, even if its client is gone. So no change
 * deadlocks, starves, or takes effect after a later one that it overlaps.
 */
struct claim {
    uint32_t blockers; /* earlier claims that it overlaps; 0: the operation may run */
    struct claim *next_admitted;
    void (*admitted)(struct claim *claim); /* called without locks; NULL: a thread waits in claim_wait() */
};

struct claimed {
    struct range range;
    struct claim *claim;
};

/* The claims of one image. */
struct claims {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for claim_wait() */
    struct claimed *all;    /* in order of arrival */
    uint32_t count, room;
    uint32_t waiting; /* claims with blockers; 0: a release need not look for claims that may run now */
};

void claims_init(struct claims *claims);
void claims_destroy(struct claims *claims);

/* Enter a claim. -EAGAIN: it waits, and claim->admitted will be called, possibly before this returns. -ENOMEM. */
int claim_take(struct claims *claims, struct claim *claim, const struct range *range);

/* Sleep until a claim without an admitted function may run. False: *canceled was set before. Code that sets *canceled
   calls claims_wake(). canceled: NULL: the wait cannot be canceled. */
bool claim_wait(struct claims *claims, struct claim *claim, const uint32_t *canceled);
void claims_wake(struct claims *claims);

/* Remove a claim that may run, or that a thread has waited for. Calls admitted of the claims that may run now, so the
   caller must not hold locks. */
void claim_release(struct claims *claims, struct claim *claim);

/* Remove a claim that waits. False: it was admitted meanwhile, and was not removed. Chains the claims that may run now
   to *freed, because the caller holds the engine's lock. The caller gives *freed to claims_admit() without the lock. */
bool claim_withdraw(struct claims *claims, struct claim *claim, struct claim **freed);
void claims_admit(struct claim *freed);

/* Return the range that a change of a file or device claims: rounded to blocks where it covers a block in part. */
struct range change_range(const struct op *op);

#endif
