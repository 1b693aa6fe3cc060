/* SPDX-License-Identifier: Apache-2.0 */

/* Records of durable ranges, for the files of this room: their sets and journals (keeping.c), and what others call
   (durable.c). */

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
 * Three sets follow what is changed: `changed` has what no flush covers yet; each flush that runs has what it covers;
 * `durable` has what a flush has covered. A change takes its range out of all of them before it begins, so a range that
 * is changed during a flush does not become durable by it.
 *
 * The journal has `durable`, but for `unwritten`, which it gets at the next write. Lines are written in the order in
 * which the sets change: code that takes ranges out of `durable`, and code that writes lines, holds journal_lock. Locks
 * nest: journal_lock, then lock. Only journal_lock is held over system calls.
 */
struct iou_durable {
    atomic_uint_fast32_t refs;
    pthread_mutex_t journal_lock; /* guards the journal and the window */
    struct journal journal;
    uint64_t window;      /* its start; see widen() */
    uint32_t removals;    /* in it */
    pthread_mutex_t lock; /* guards all below; a leaf */
    struct ranges changed, durable, unwritten;
    iou_range leaving; /* bytes that `durable` has not any more, and the journal may have until its write ends */
    struct link flushes;
    uint32_t flushing;
    uint64_t unsynced_since; /* 0: the journal has all that is durable, on stable storage */
    bool closed;             /* nothing becomes durable any more */
    int error;               /* errno of the first failure of the journal */
};

/* ns. A power cut loses what became durable in this time: it is sent again then. A sync takes 0.7 ms (ext4, virtual
   disk), and each flush would wait for it. */
#define SYNC_INTERVAL UINT64_C(1000000000)

/* What a flush that runs covers; in the record's list of flushes. */
struct iou_covered {
    struct link link;
    struct ranges ranges;
};

/* ---- the sets; the lock is held --------------------------------------------------------------------------------- */

/* Take a range out of what a flush may make durable. */
void durable_forget(struct iou_durable *record, uint64_t start, uint64_t end);

/* Whether a change of the range has to call durable_take_out(), which waits for a removal that is being written. */
bool durable_has(const struct iou_durable *record, uint64_t start, uint64_t end);

/* Add ranges that are on stable storage. */
void durable_add(struct iou_durable *record, const struct ranges *ranges);

/* Let nothing become durable any more. */
void durable_close(struct iou_durable *record);

/* ---- the journal ------------------------------------------------------------------------------------------------ */

/*
 * Take a range out of what is durable, and of the journal, durably; and what else a change of start..end takes out.
 * Blocks. After an error the range is durable as before.
 */
int durable_take_out(struct iou_durable *record, uint64_t start, uint64_t end);

#endif
