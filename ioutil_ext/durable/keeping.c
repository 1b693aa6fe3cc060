/* SPDX-License-Identifier: Apache-2.0 */

/* Records of durable ranges: their sets, which follow changes as in durable.h, and their journals. */

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "durable/durable.h"

/* Bytes. The journal is written anew when it is longer. It then has at most IOU_DURABLE_RANGES lines of 50 bytes. */
#define MOST_JOURNAL MIB

/*
 * Each change of durable bytes waits for a sync of the journal. The first EXACT removals in WINDOW ns take out only
 * their own range; each later one takes out twice as much as the one before. After MOST_REMOVALS nothing becomes
 * durable until the end of the window. Without this, a disk in use, whose blocks are written over and over, would get
 * only 1,400 writes a second; with it, some 80 writes in 10 s wait.
 */
#define EXACT 64u
#define MOST_REMOVALS 80u
#define WINDOW UINT64_C(10000000000)

/* ---- the sets; the lock is held --------------------------------------------------------------------------------- */

void durable_forget(struct iou_durable *record, uint64_t start, uint64_t end) {
    ranges_remove(&record->changed, start, end);
    for (struct link *node = record->flushes.next; node != &record->flushes; node = node->next)
        ranges_remove(&container_of(node, struct iou_covered, link)->ranges, start, end);
}

/* The journal may have ranges that the set has lost. */
bool durable_has(const struct iou_durable *record, uint64_t start, uint64_t end) {
    return record->durable.lost || ranges_overlap(&record->durable, start, end) ||
           (start < record->leaving.end && record->leaving.start < end);
}

void durable_close(struct iou_durable *record) {
    record->closed = true;
    ranges_free(&record->changed);
}

bool durable_is_overwritten(const struct iou_durable *record) {
    return record->removals >= MOST_REMOVALS && now_ns() - record->window <= WINDOW;
}

void durable_add(struct iou_durable *record, const struct ranges *ranges) {
    if (record->closed || ranges->count == 0)
        return;
    if (durable_is_overwritten(record)) {
        ranges_join(&record->changed, ranges); /* for the first flush after the window */
        return;
    }
    struct place place = {0};
    for (const iou_range *range; (range = blocks_next(ranges, &place));) {
        iou_range fitting = ranges_fit(&record->durable, range->start, range->end);
        ranges_add(&record->durable, fitting.start, fitting.end);
        ranges_add(&record->unwritten, fitting.start, fitting.end);
    }
    if (record->unwritten.count && !record->unsynced_since)
        record->unsynced_since = now_ns();
}

/* All that the journal has is on stable storage. */
static void note_sync(struct iou_durable *record) {
    record->unsynced_since = record->unwritten.count ? now_ns() : 0;
}

/* ---- the journal; journal_lock is held -------------------------------------------------------------------------- */

static void note_error(struct iou_durable *record, int error) {
    pthread_mutex_lock(&record->lock);
    if (error && !record->error)
        record->error = -error;
    pthread_mutex_unlock(&record->lock);
}

/* Remove the journal, and let the record be empty for good. After an error the record is as before, but closed. */
static int make_void(struct iou_durable *record) {
    int error = journal_remove(&record->journal);
    pthread_mutex_lock(&record->lock);
    durable_close(record);
    if (!error) {
        ranges_free(&record->durable);
        ranges_free(&record->unwritten);
        record->unsynced_since = 0;
    }
    pthread_mutex_unlock(&record->lock);
    return error;
}

/* Write the whole journal anew. */
static int rewrite(struct iou_durable *record) {
    struct ranges copy = {0};
    pthread_mutex_lock(&record->lock);
    iou_range leaving = record->leaving;
    if (record->durable.lost)
        record->leaving = (iou_range){0, UINT64_MAX};
    ranges_join(&copy, &record->durable);
    record->durable.lost = false;
    ranges_free(&record->unwritten);
    note_sync(record);
    pthread_mutex_unlock(&record->lock);
    int error = copy.lost ? -ENOMEM : journal_rewrite(&record->journal, &copy);
    pthread_mutex_lock(&record->lock);
    record->leaving = leaving;
    if (error)
        record->durable.lost = true; /* the old journal is still in use, and differs from the set */
    pthread_mutex_unlock(&record->lock);
    ranges_free(&copy);
    return error;
}

/* Whether the journal must be written anew: it is long or broken, or has ranges that the set of durable ones has lost.
 */
static bool must_rewrite(struct iou_durable *record) {
    pthread_mutex_lock(&record->lock);
    bool lost = record->durable.lost;
    pthread_mutex_unlock(&record->lock);
    return lost || record->journal.broken || record->journal.size > MOST_JOURNAL;
}

/* Write ranges that became durable. If it fails, the journal lacks them. Without a sync in this call,
   iou_durable_is_due() asks for another one. */
static int append_unwritten(struct iou_durable *record) {
    struct ranges ranges = {0};
    pthread_mutex_lock(&record->lock);
    ranges_move(&record->unwritten, &ranges);
    if (ranges.count)
        record->paid_until = max_u64(record->paid_until, now_ns()) + WRITE_INTERVAL;
    pthread_mutex_unlock(&record->lock);
    int error = ranges.count ? journal_append(&record->journal, &ranges) : 0;
    if (!error && record->journal.dirty && now_ns() - record->journal.synced_at >= SYNC_INTERVAL)
        error = journal_sync(&record->journal);
    pthread_mutex_lock(&record->lock);
    if (error || !record->journal.dirty)
        note_sync(record);
    pthread_mutex_unlock(&record->lock);
    ranges_free(&ranges);
    return error;
}

/* Append that a range is not durable any more. */
static int append_removal(struct iou_durable *record, iou_range range) {
    int error = journal_take_out(&record->journal, range);
    return error ? error : journal_sync(&record->journal);
}

/* Remove a range from the journal, durably. If the removal cannot be written, remove the journal itself. */
static int write_removal(struct iou_durable *record, iou_range range) {
    int error = must_rewrite(record) ? rewrite(record) : append_removal(record, range);
    note_error(record, error);
    return error ? make_void(record) : 0;
}

/* Return a range around start..end to take out, so that many removals do not each wait for a sync; see EXACT. The lock
   is held. */
static iou_range widen(struct iou_durable *record, uint64_t start, uint64_t end) {
    uint64_t now = now_ns(), block = PAGE_UNIT;
    if (now - record->window > WINDOW) {
        record->window = now;
        record->removals = 0;
    }
    if (record->removals++ < EXACT)
        return (iou_range){start, end};
    for (uint32_t i = EXACT; i < record->removals && block <= INT64_MAX / 2; i++)
        block *= 2;
    return (iou_range){round_down(start, block), min_u64(round_up(end, block), INT64_MAX)};
}

int durable_take_out(struct iou_durable *record, uint64_t start, uint64_t end) {
    struct ranges taken = {0};
    int error = 0;
    pthread_mutex_lock(&record->journal_lock);
    iou_range out = {0};
    pthread_mutex_lock(&record->lock);
    bool durable = durable_has(record, start, end); /* another thread may have taken it out, with more */
    durable_forget(record, start, end);
    if (durable) {
        out = widen(record, start, end);
        ranges_cut(&record->durable, out.start, out.end, &taken);
        ranges_remove(&record->unwritten, out.start, out.end);
        record->leaving = out;
    }
    pthread_mutex_unlock(&record->lock);
    if (durable)
        error = write_removal(record, out);
    pthread_mutex_lock(&record->lock);
    record->leaving = (iou_range){0};
    if (durable && !error)
        note_sync(record);
    if (error) {
        ranges_join(&record->durable, &taken);
        record->durable.lost |= taken.lost;
    }
    pthread_mutex_unlock(&record->lock);
    pthread_mutex_unlock(&record->journal_lock);
    ranges_free(&taken);
    return error;
}

/* ---- for others ------------------------------------------------------------------------------------------------- */

int iou_durable_is_due(iou_durable *record) {
    if (!record)
        return 0;
    pthread_mutex_lock(&record->lock);
    uint64_t now = record->unsynced_since ? now_ns() : 0;
    bool due = record->unsynced_since && (now - record->unsynced_since >= SYNC_INTERVAL ||
                                          (record->unwritten.count && record->paid_until <= now + WRITE_CREDIT));
    pthread_mutex_unlock(&record->lock);
    return due;
}

/* Write durable ranges that the journal does not have. */
static void write_durable(struct iou_durable *record) {
    bool anew = must_rewrite(record);
    int error = anew ? rewrite(record) : append_unwritten(record);
    note_error(record, error);
    if (error && anew)
        make_void(record); /* after an error, each change tries again to remove the journal */
}

void iou_durable_write(iou_durable *record) {
    if (!record)
        return;
    pthread_mutex_lock(&record->journal_lock);
    write_durable(record);
    pthread_mutex_unlock(&record->journal_lock);
}

int iou_durable_void(iou_durable *record) {
    if (!record)
        return 0;
    pthread_mutex_lock(&record->journal_lock);
    int error = make_void(record);
    note_error(record, error);
    pthread_mutex_unlock(&record->journal_lock);
    return error;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

static bool are_ranges(const iou_range *ranges, uint32_t count) {
    if (count > IOU_DURABLE_RANGES)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (ranges[i].start >= ranges[i].end || ranges[i].end > INT64_MAX ||
            (i && ranges[i].start <= ranges[i - 1].end))
            return false;
    return true;
}

static void durable_free(struct iou_durable *record) {
    journal_free(&record->journal);
    ranges_free(&record->changed);
    ranges_free(&record->durable);
    ranges_free(&record->unwritten);
    pthread_mutex_destroy(&record->journal_lock);
    pthread_mutex_destroy(&record->lock);
    free(record);
}

/* Write the first journal. */
static int begin_journal(struct iou_durable *record, const iou_range *ranges, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        ranges_add(&record->durable, ranges[i].start, ranges[i].end);
    return rewrite(record);
}

int iou_durable_new(int directory, const char *name, const char *header, const iou_range *ranges, uint32_t count,
                    iou_durable **result) {
    if (!name || !header || !result || !are_ranges(ranges, count))
        return -EINVAL;
    iou_durable *record = calloc(1, sizeof(*record));
    if (!record)
        return -ENOMEM;
    atomic_init(&record->refs, 1);
    pthread_mutex_init(&record->journal_lock, NULL);
    pthread_mutex_init(&record->lock, NULL);
    link_init(&record->flushes);
    int error = journal_init(&record->journal, directory, name, header);
    if (!error)
        error = begin_journal(record, ranges, count);
    if (error)
        durable_free(record);
    else
        *result = record;
    return error;
}

void iou_durable_retain(iou_durable *record) {
    if (record)
        atomic_fetch_add(&record->refs, 1);
}

void iou_durable_end(iou_durable *record) {
    if (!record)
        return;
    pthread_mutex_lock(&record->lock);
    durable_close(record);
    pthread_mutex_unlock(&record->lock);
    pthread_mutex_lock(&record->journal_lock);
    write_durable(record);
    if (record->journal.dirty)
        note_error(record, journal_sync(&record->journal));
    journal_close(&record->journal);
    pthread_mutex_unlock(&record->journal_lock);
}

void iou_durable_release(iou_durable *record) {
    if (record && atomic_fetch_sub(&record->refs, 1) == 1)
        durable_free(record);
}
