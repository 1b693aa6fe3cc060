/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Waiting, and who uses what (grace.c): ranges of guest clusters that one operation changes alone, and clusters of the
 * file that an operation may still read or write although they were unlinked. The image's lock is held.
 */

#ifndef IOUTIL_QCOW2_GRACE_H
#define IOUTIL_QCOW2_GRACE_H

#include "qcow2/qcow2.h"

/* Sleep until all of a list are woken; the lock is let go of meanwhile. Wake them; lets go of it if there is one. */
void qcow2_await(struct qcow2 *q, struct link *waiters);
void qcow2_wake(struct qcow2 *q, struct link *waiters);

/* The number of an L1 entry, as a range of one for busy_enter(): above all of clusters. */
#define BUSY_TABLES (UINT64_C(1) << 62)

/* Have a range alone, first..end, without letting go of the lock. False: another operation has a part of it; it has
   ended now, and the caller, who has nothing, looks again: the lock was let go of. */
bool busy_enter(struct qcow2 *q, struct busy *busy, uint64_t first, uint64_t end);
/* Wait for those who have a part of a range. True: there were some, and the lock was let go of. */
bool busy_wait(struct qcow2 *q, uint64_t first, uint64_t end);
/* Lets go of the lock if somebody waits. */
void busy_leave(struct qcow2 *q, struct busy *busy);

/* Between these two, clusters that were found in the tables are given to nobody else. */
static inline unsigned grace_enter(struct qcow2 *q) {
    q->grace.active[q->grace.phase]++;
    return q->grace.phase;
}

/* Lets go of the lock if somebody waits for the end of the grace. */
static inline void grace_leave(struct qcow2 *q, unsigned phase) {
    if (--q->grace.active[phase] == 0)
        qcow2_wake(q, &q->grace.waiters);
}

/* Whether all have left who entered before the last change of the phase. */
static inline bool grace_is_over(const struct qcow2 *q) {
    return q->grace.active[q->grace.phase ^ 1] == 0;
}

/* Note clusters; what follows the last ones is added to them. Without memory they stay unused until the image is
   closed, and leak. */
void frees_add(struct frees *frees, uint64_t first, uint64_t count);
void frees_free(struct frees *frees);

/* Clusters that nothing names any more, and nobody can take yet. */
static inline uint64_t frees_pending(const struct qcow2 *q) {
    return q->unlinked.clusters + q->freeing + q->due.clusters + q->waiting.clusters;
}

#endif
