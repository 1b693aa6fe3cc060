/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Waits, and users of clusters (grace.c). An operation may have a range of guest clusters for itself while it changes
 * them. Clusters of the file that were unlinked are not reused while an operation may still read or write them. Call
 * these functions with the image's lock held.
 */

#ifndef IOUTIL_QCOW2_GRACE_H
#define IOUTIL_QCOW2_GRACE_H

#include "qcow2/qcow2.h"

/* qcow2_await() releases the lock and sleeps until the waiters of the list are woken. qcow2_wake() wakes all of a list;
   it releases the lock for a while if there is a waiter. */
void qcow2_await(struct qcow2 *q, struct link *waiters);
void qcow2_wake(struct qcow2 *q, struct link *waiters);

/* For busy_enter(), the number of an L1 entry as a range of one. It is above all numbers of clusters. */
#define BUSY_TABLES (UINT64_C(1) << 62)

/*
 * Get the range first..end for this operation alone. Returns false if another operation had a part of it. Then it has
 * ended by now, but the lock was released, so the caller, which has not got the range, must look at the tables again.
 */
bool busy_enter(struct qcow2 *q, struct busy *busy, uint64_t first, uint64_t end);
/* Wait for the operations that have a part of a range. Returns true if there were any. Then the lock was released. */
bool busy_wait(struct qcow2 *q, uint64_t first, uint64_t end);
/* Give the range back. Releases the lock for a while if another operation waits. */
void busy_leave(struct qcow2 *q, struct busy *busy);

/* Clusters that an operation finds in the tables between grace_enter() and grace_leave() are not reused. */
static inline unsigned grace_enter(struct qcow2 *q) {
    q->grace.active[q->grace.phase]++;
    return q->grace.phase;
}

/* Releases the lock for a while if another operation waits for the end of the grace. */
static inline void grace_leave(struct qcow2 *q, unsigned phase) {
    if (--q->grace.active[phase] == 0)
        qcow2_wake(q, &q->grace.waiters);
}

/* Return whether all operations have left that entered before the last change of the phase. */
static inline bool grace_is_over(const struct qcow2 *q) {
    return q->grace.active[q->grace.phase ^ 1] == 0;
}

/* Note clusters. If they follow the last ones, these get longer. Without memory, the clusters stay unused until the
   image is closed, and leak. */
void frees_add(struct frees *frees, uint64_t first, uint64_t count);
void frees_free(struct frees *frees);

/* Return how many unlinked clusters cannot be taken yet. */
static inline uint64_t frees_pending(const struct qcow2 *q) {
    return q->unlinked.clusters + q->freeing + q->due.clusters + q->waiting.clusters;
}

#endif
