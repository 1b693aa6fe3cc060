/* SPDX-License-Identifier: Apache-2.0 */

/* Records of durable ranges, for the files of this folder: sets of ranges and journals (keeping.c), and the functions
   of the api (durable.c). */

#ifndef IOUTIL_DURABLE_RECORD_H
#define IOUTIL_DURABLE_RECORD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/durable.h"
#include "base/link.h"
#include "durable/journal.h"
#include "durable/ranges.h"

/*
 * Three sets follow the changes: `changed` has the ranges that no flush covers yet; each running flush has the ranges
 * that it covers; `durable` has the ranges that a flush has covered. Before a change begins, its range is removed from
 * all of them, so a range that changes during a flush does not become durable by this flush.
 *
 * The journal has the ranges of `durable` without those of `unwritten`, which the next write adds. The lines are
 * written in the order in which the sets change: code that removes ranges from `durable` or writes lines holds
 * journal_lock. Locks nest in the order journal_lock, lock. Only journal_lock is held over system calls.
 */
struct iou_durable {
    atomic_uint_fast32_t refs;
    pthread_mutex_t journal_lock; /* guards the journal */
    struct journal journal;
    pthread_mutex_t lock; /* guards all below; a leaf */
    uint64_t window;      /* start of the window; see widen() */
    uint32_t removals;    /* in the window */
    struct ranges changed, durable, unwritten;
    iou_range leaving; /* removed from `durable`; the journal may have it until its write ends */
    struct link flushes;
    uint32_t flushing;
    uint64_t unsynced_since; /* 0 if all durable ranges are in the journal, on stable storage */
    uint64_t paid_until;     /* see WRITE_INTERVAL */
    bool closed;             /* no range becomes durable any more */
    int error;               /* errno of the first failure of the journal */
};

/* The ns after which the journal is to be synced. After a power cut, ranges that became durable in this time are sent
   again. A sync takes 0.7 ms (ext4, virtual disk), and without this interval each flush would wait for one. */
#define SYNC_INTERVAL UINT64_C(1000000000)

/* The ns that a write of ranges costs, and the credit in ns: some 32 flushes may each write the journal at once,
   further ones every 10 ms. A worker writes it, and to wake one takes 60 us of the flush. With that in each flush,
   random writes of 4 KiB to tmpfs with a flush after each 16 lost up to 0.4 of their rate. */
#define WRITE_INTERVAL UINT64_C(10000000)
#define WRITE_CREDIT (32 * WRITE_INTERVAL)

/* The ranges that a running flush covers. It is in the record's list of flushes. */
struct iou_covered {
    struct link link;
    struct ranges ranges;
};

/* ---- the sets; the lock is held --------------------------------------------------------------------------------- */

/* Remove a range from the ranges that a flush may make durable. */
void durable_forget(struct iou_durable *record, uint64_t start, uint64_t end);

/* Return whether a change of the range has to call durable_take_out(), which also waits while a removal is being
   written. */
bool durable_has(const struct iou_durable *record, uint64_t start, uint64_t end);

/* Return whether durable bytes change so often that nothing becomes durable for some seconds. */
bool durable_is_overwritten(const struct iou_durable *record);

/* Add ranges that are on stable storage. */
void durable_add(struct iou_durable *record, const struct ranges *ranges);

/* Let no range become durable any more. */
void durable_close(struct iou_durable *record);

/* ---- the journal ------------------------------------------------------------------------------------------------ */

/* Remove a range from `durable`, and durably from the journal. Call this before a change of the range. Blocks. After an
   error the range is durable as before. */
int durable_take_out(struct iou_durable *record, uint64_t start, uint64_t end);

#endif
