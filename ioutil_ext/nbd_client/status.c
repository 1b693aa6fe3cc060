/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The status of a range in several contexts (doc/proto.md, "Metadata querying"). An answer may have a million extents
 * in each of 64 contexts. When they are received, equal ones become one run, and only the first runs are kept. So the
 * memory is known before the request is sent. The status of the rest is requested again.
 */

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "nbd_client/request.h"

#define STATUS_ZERO 2u /* of base:allocation */
#define STATUS_DIRTY 1u

uint64_t contexts_tell(const struct contexts *contexts, uint64_t tells) {
    uint64_t found = 0;
    for (uint32_t i = 0; i < contexts->count; i++)
        found |= contexts->list[i].tells & tells;
    return found;
}

struct status *status_new(const struct contexts *contexts, uint64_t tells, bool apart, uint64_t start,
                          iou_extent *place, uint32_t most) {
    uint32_t wanted = 0, count = contexts->count;
    for (uint32_t i = 0; i < count; i++)
        wanted += (contexts->list[i].tells & tells) != 0;
    bool in_place = place && wanted == 1;
    if (wanted && !in_place)
        most = (uint32_t)min_u64(most, STATUS_MEMORY / sizeof(iou_extent) / wanted);
    size_t heads = sizeof(struct status) + count * sizeof(struct told);
    struct status *status = malloc(heads + (in_place ? 0 : (size_t)wanted * most * sizeof(iou_extent)));
    if (!status)
        return NULL;
    iou_extent *runs = in_place ? place : (iou_extent *)(void *)((char *)status + heads);
    *status = (struct status){.start = start, .most = most, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        const iou_nbd_context *context = &contexts->list[i];
        bool wants = context->tells & tells;
        status->told[i] = (struct told){
            .id = context->id,
            .tells = context->tells,
            .means = context->tells & ALL_BITMAPS && !apart ? IOU_EXTENT_DIRTY : context->tells,
            .end = start,
            .runs = wants ? runs : NULL,
        };
        runs += wants ? most : 0;
    }
    return status;
}

struct told *status_find(struct status *status, uint32_t id) {
    for (uint32_t i = 0; status && i < status->count; i++)
        if (status->told[i].id == id && !status->told[i].answered)
            return &status->told[i];
    return NULL;
}

/* Whether an extent has the property that its context reports, by its flags there. Unknown bits have no meaning. */
static bool has_it(uint64_t tells, uint64_t flags) {
    switch (tells) {
    case IOU_EXTENT_ZERO:
        return flags & STATUS_ZERO;
    case IOU_EXTENT_HOLE: /* the depth of the layer that has data; 0: none has */
        return flags == 0;
    default:
        return flags & STATUS_DIRTY;
    }
}

bool status_add(struct status *status, struct told *told, uint64_t length, uint64_t flags) {
    iou_extent *last = told->count ? &told->runs[told->count - 1] : NULL;
    uint64_t before = told->end, means = has_it(told->tells, flags) ? told->means : 0;
    if (length == 0 || length > INT64_MAX - before)
        return false;
    told->end += length;
    if (last && last->end == before && last->flags == means) /* otherwise runs before it were not kept */
        last->end = told->end;
    else if (told->runs && told->count < status->most && (!last || last->end == before))
        told->runs[told->count++] = (iou_extent){.end = told->end, .flags = means};
    return true;
}

/* ---- all contexts together -------------------------------------------------------------------------------------- */

/* Cut off records before `start` and from `end` on; they have no gaps in between. Returns how many are left. */
static int64_t cut_records(iou_extent *records, uint64_t start, uint64_t end) {
    const iou_extent *record = records;
    int64_t count = 0;
    while (record->end <= start)
        record++;
    do
        records[count++] = *record;
    while (record++->end < end);
    records[count - 1].end = end;
    return count;
}

/* Find the first run of each wanted context; returns how many. *end: the end of the range for which all have runs. */
static uint32_t first_runs(const struct status *status, const iou_extent **at, uint64_t *end) {
    uint32_t wanted = 0;
    for (uint32_t i = 0; i < status->count; i++) {
        const struct told *told = &status->told[i];
        if (!told->runs)
            continue;
        at[wanted++] = told->runs;
        *end = min_u64(*end, told->count ? told->runs[told->count - 1].end : status->start);
    }
    return wanted;
}

/* Return the flags at a place, and where they may change. at: for each context, the run of the place or an earlier
   one. */
static uint64_t flags_at(const iou_extent **at, uint32_t wanted, uint64_t place, uint64_t *stop) {
    uint64_t flags = 0;
    for (uint32_t i = 0; i < wanted; i++) {
        while (at[i]->end <= place)
            at[i]++;
        flags |= at[i]->flags;
        *stop = min_u64(*stop, at[i]->end);
    }
    return flags;
}

int64_t status_merge(const struct status *status, uint64_t start, uint64_t end, iou_extent *extents, uint64_t max) {
    const iou_extent *at[IOU_NBD_CONTEXTS];
    uint64_t count = 0, place = start, stop;
    uint32_t wanted = first_runs(status, at, &end);
    if (end <= start)
        return -EPROTO;
    if (wanted == 1 && at[0] == extents)
        return cut_records(extents, start, end);
    for (; place < end; place = stop) {
        stop = end;
        uint64_t flags = flags_at(at, wanted, place, &stop);
        if (count && extents[count - 1].flags == flags)
            extents[count - 1].end = stop;
        else if (count == max)
            break;
        else
            extents[count++] = (iou_extent){.end = stop, .flags = flags};
    }
    return (int64_t)count;
}
