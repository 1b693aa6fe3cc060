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
 * The claim of a write, zero or trim that runs, or that waits for earlier changes that it overlaps. Claims are taken in
 * order of arrival, and kept until storage has released the operation, even if its client is gone. So no change
 * deadlocks, starves, or takes effect after a later one that it overlaps.
 */
struct claim {
    uint32_t blockers;        /* earlier claims that it overlaps; the operation may run when this is 0 */
    bool withdrawn;           /* canceled while it waited, so it is not among the claims any more */
    const uint32_t *canceled; /* claims_cancel() looks at this; NULL if it cannot cancel the claim */
    struct claim *next_admitted;
    void (*admitted)(struct claim *claim); /* called without locks when its wait ends */
};

struct claimed {
    struct range range;
    struct claim *claim;
};

/* The claims of one image. */
struct claims {
    pthread_mutex_t lock;
    struct claimed *all; /* in order of arrival */
    uint32_t count, room;
    uint32_t waiting; /* claims with blockers; if 0, a release need not look for claims that may run now */
};

void claims_init(struct claims *claims);
void claims_destroy(struct claims *claims);

/* Withdraw the claims that wait and are canceled, and call their `admitted`. Call this after setting *canceled. */
void claims_cancel(struct claims *claims);

/*
 * Remove a waiting claim. Returns false, and removes nothing, if it was admitted in the meantime. The caller holds the
 * engine's lock, so claims that may run now are only chained to *freed. Pass that to claims_admit() without the lock.
 */
bool claim_withdraw(struct claims *claims, struct claim *claim, struct claim **freed);
void claims_admit(struct claim *freed);

/*
 * Enter the claim of an operation, for its change_range() or for another range: `claim` of struct image_ops. Returns 0
 * if the operation may run. Returns -EAGAIN if it waits; claim->admitted is then called, possibly before this returns.
 * Returns -ECANCELED if it would wait and is canceled already, or -ENOMEM.
 */
int claim_operation(struct op *op);
int claim_range(struct op *op, struct range range);

/* Remove the claim of an operation, even if it still waits. Calls `admitted` of the claims that may run now, so the
   caller must not hold locks. */
void claim_release_operation(struct op *op);

/* Wake the thread or fiber that waits in op->waiter for the claim of an operation. For use as claim->admitted. */
void claim_wake(struct claim *claim);

#endif
