/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Claims: who works on which bytes of an image (admission.c). The lock of claims may be taken with the engine's held;
 * no other one is taken with it held.
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
 * That a write, zero or trim runs, or waits while earlier ones exist that it overlaps. It is taken in order of arrival,
 * and kept until storage has let go of the operation, whatever became of its client: so nothing deadlocks, nothing
 * starves, and nothing takes effect after what came later.
 */
struct claim {
    uint32_t blockers; /* earlier claims that it overlaps; 0: may run */
    struct claim *next_admitted;
    void (*admitted)(struct claim *claim); /* called without locks; NULL: a thread waits in claim_wait() */
};

struct claimed {
    struct range range;
    struct claim *claim;
};

/* Of one image. */
struct claims {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for claim_wait() */
    struct claimed *all;    /* in order of arrival */
    uint32_t count, room;
    uint32_t waiting; /* of them; while there are none, nobody looks who may run now */
};

void claims_init(struct claims *claims);
void claims_destroy(struct claims *claims);

/* Enter the claim. -EAGAIN: it waits, claim->admitted will be called (maybe before this returns). -ENOMEM. */
int claim_take(struct claims *claims, struct claim *claim, const struct range *range);

/* Sleep until a claim without admitted function may run. False: *canceled was set before. Who sets it calls
   claims_wake(). NULL: it cannot be canceled. */
bool claim_wait(struct claims *claims, struct claim *claim, const uint32_t *canceled);
void claims_wake(struct claims *claims);

/* Remove a claim that runs, or that a thread has waited for; calls admitted of those that may run now. No lock of ours
   may be held. */
void claim_release(struct claims *claims, struct claim *claim);

/* Remove a claim that waits. False: it was admitted meanwhile, and is still there. Chains what may run now to *freed
   (to be given to claims_admit()), because the caller holds the engine's lock. */
bool claim_withdraw(struct claims *claims, struct claim *claim, struct claim **freed);
void claims_admit(struct claim *freed);

/* What a change of a file or device claims: its range, rounded where it covers a block in part. */
struct range change_range(const struct op *op);

#endif
