/* SPDX-License-Identifier: Apache-2.0 */

/* Records of durable ranges: changes, flushes, and the state of a record. durable.h describes how the sets follow
   them. */

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "durable/durable.h"

/* Most flushes that run and cover something. */
#define MOST_FLUSHES 8u

/* ---- changes ---------------------------------------------------------------------------------------------------- */

int iou_durable_try_change(iou_durable *record, uint64_t offset, uint64_t length) {
    if (!record || length == 0)
        return 0;
    if (!lies_in(offset, length, INT64_MAX))
        return -EINVAL;
    pthread_mutex_lock(&record->lock);
    bool durable = durable_has(record, offset, offset + length);
    if (!durable)
        durable_forget(record, offset, offset + length);
    pthread_mutex_unlock(&record->lock);
    return durable ? -EAGAIN : 0;
}

int iou_durable_change(iou_durable *record, uint64_t offset, uint64_t length) {
    int error = iou_durable_try_change(record, offset, length);
    return error == -EAGAIN ? durable_take_out(record, offset, offset + length) : error;
}

void iou_durable_changed(iou_durable *record, uint64_t offset, uint64_t length, uint32_t durable) {
    if (!record || length == 0 || !lies_in(offset, length, INT64_MAX))
        return;
    struct ranges ranges = {0};
    pthread_mutex_lock(&record->lock);
    if (!durable && !record->closed)
        ranges_add(&record->changed, offset, offset + length);
    if (durable) {
        ranges_add(&ranges, offset, offset + length);
        durable_add(record, &ranges);
    }
    pthread_mutex_unlock(&record->lock);
    ranges_free(&ranges);
}

/* ---- flushes ---------------------------------------------------------------------------------------------------- */

/* Let a flush cover the ranges that were changed before. False: it covers none. */
static bool cover(struct iou_durable *record, struct iou_covered *covered, uint64_t offset, uint64_t length) {
    pthread_mutex_lock(&record->lock);
    bool covers = record->flushing < MOST_FLUSHES && !record->closed && !durable_is_overwritten(record);
    if (covers) {
        record->flushing++;
        link_append(&record->flushes, &covered->link);
        if (length)
            ranges_cut(&record->changed, offset, offset + length, &covered->ranges);
        else
            ranges_move(&record->changed, &covered->ranges);
    }
    pthread_mutex_unlock(&record->lock);
    return covers;
}

iou_covered *iou_durable_flush(iou_durable *record, uint64_t offset, uint64_t length) {
    if (!record || !lies_in(offset, length, INT64_MAX))
        return NULL;
    iou_covered *covered = calloc(1, sizeof(*covered));
    if (covered && !cover(record, covered, offset, length)) {
        free(covered);
        return NULL;
    }
    return covered;
}

/* End the ranges that a flush covers. error: as in iou_durable_flushed(). The lock is held. */
static void uncover(struct iou_durable *record, struct iou_covered *covered, int32_t error) {
    record->flushing--;
    link_remove(&covered->link);
    if (!error)
        durable_add(record, &covered->ranges);
    else if (!record->closed)
        ranges_join(&record->changed, &covered->ranges);
    ranges_free(&covered->ranges);
}

void iou_durable_flushed(iou_durable *record, iou_covered *covered, int32_t error) {
    if (!record)
        return;
    pthread_mutex_lock(&record->lock);
    if (error && error != ECANCELED)
        durable_close(record);
    if (covered)
        uncover(record, covered, error);
    pthread_mutex_unlock(&record->lock);
    free(covered);
}

/* ---- the state of a record -------------------------------------------------------------------------------------- */

uint32_t iou_durable_ranges(iou_durable *record, uint64_t offset, iou_range *ranges, uint32_t max) {
    if (!record)
        return 0;
    pthread_mutex_lock(&record->lock);
    struct place place = blocks_behind(&record->durable, offset);
    uint32_t count = 0;
    for (const iou_range *range; count < max && (range = blocks_next(&record->durable, &place)); count++)
        ranges[count] = *range;
    pthread_mutex_unlock(&record->lock);
    return count;
}

void iou_durable_state(iou_durable *record, iou_durable_info *info) {
    *info = (iou_durable_info){0};
    if (!record)
        return;
    pthread_mutex_lock(&record->lock);
    *info = (iou_durable_info){
        .ranges = record->durable.count,
        .closed = record->closed,
        .error = record->error,
        .unwritten = record->unwritten.count,
    };
    struct place place = {0};
    for (const iou_range *range; (range = blocks_next(&record->durable, &place));)
        info->bytes += range->end - range->start;
    pthread_mutex_unlock(&record->lock);
}
