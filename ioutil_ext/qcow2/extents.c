/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>

#include "base/numbers.h"
#include "qcow2/chain.h"
#include "qcow2/image.h"
#include "qcow2/layer.h"

/* The flags of iou_extent for holes. */
enum { NO_HOLE = 0, HOLE = IOU_EXTENT_ZERO, NOWHERE = IOU_EXTENT_ZERO | IOU_EXTENT_HOLE };

/* Records that are being filled. */
struct records {
    iou_extent *extents;
    uint64_t most, count;
};

/* Add the extent up to `end`. False: there is no room for another record. */
static bool add_record(struct records *records, uint64_t end, uint64_t flags) {
    iou_extent *next = records->extents + records->count;
    if (records->count && next[-1].flags == flags) {
        next[-1].end = end;
        return true;
    }
    if (records->count == records->most)
        return false;
    *next = (iou_extent){.end = end, .flags = flags};
    records->count++;
    return true;
}

static int find_changes(struct qcow2 *q, struct op *op, uint64_t pos, uint64_t end, struct changes *changes) {
    pthread_mutex_lock(&q->lock);
    int error = bitmap_find(q, op, pos, end, changes);
    pthread_mutex_unlock(&q->lock);
    return error;
}

/* Find whether the range at pos has changed, by the bitmap of the top, and its end. Later calls have a larger pos. */
static int look_changed(struct chain *chain, struct op *op, struct changes *changes, uint64_t pos, uint64_t *end,
                        bool *dirty) {
    struct qcow2 *q = chain->levels[0].format;
    int error = 0;
    *dirty = false;
    if (!(op->flags & IOU_DIRTY) || !q->bitmap.table)
        return 0;
    for (; changes->next < changes->count && changes->ends[changes->next] <= pos; changes->next++)
        changes->dirty = !changes->dirty;
    if (changes->next == changes->count)
        error = find_changes(q, op, pos, *end, changes);
    *dirty = changes->dirty;
    *end = error ? *end : changes->ends[changes->next];
    return error;
}

/* Find the extent at pos in the files: its flags and its end. */
static int look_at_files(struct chain *chain, struct op *op, uint64_t pos, uint64_t end, uint64_t *stop,
                         uint64_t *flags) {
    struct run run;
    bool of_file = false;
    int error = chain_find(chain, op, 0, pos, end - pos, &run);
    if (error)
        return error;
    *stop = pos + run.mapping.length;
    const struct mapping *mapping = &run.mapping;
    if (mapping->kind == KIND_DATA && (!run.level->format || run.level->format->sparse)) {
        uint64_t host = mapping->host;
        error = layer_extent(op, run.level->file, host, host + mapping->length, stop, &of_file);
        *stop = pos + (*stop - host);
    }
    *flags = mapping->kind == KIND_UNALLOCATED ? NOWHERE : mapping->kind == KIND_ZERO || of_file ? HOLE : NO_HOLE;
    chain_leave(chain, &run);
    return error;
}

/* Find the extent at pos: its flags and its end. Changes are reported without layers, which takes fewer records. */
static int look_for_extent(struct chain *chain, struct op *op, struct changes *changes, uint64_t pos, uint64_t end,
                           uint64_t *stop, uint64_t *flags) {
    bool dirty;
    int error = look_changed(chain, op, changes, pos, &end, &dirty);
    if (!error)
        error = look_at_files(chain, op, pos, end, stop, flags);
    if (!error && op->flags & IOU_DIRTY)
        *flags = (*flags & IOU_EXTENT_ZERO) | (dirty ? IOU_EXTENT_DIRTY : 0);
    return error;
}

/* Report only the changes, without a look at the files. */
static int tell_changes(struct chain *chain, struct op *op, uint64_t start, uint64_t end, struct records *records) {
    struct qcow2 *q = chain->levels[0].format;
    for (bool has_room = true; has_room && start < end;) {
        struct changes changes = {.count = 1, .ends = {end}};
        if (op_canceled(op))
            return op_fail(op, IOU_SYS_NONE, ECANCELED);
        int error = q->bitmap.table ? find_changes(q, op, start, end, &changes) : 0;
        if (error)
            return error;
        for (uint32_t i = 0; has_room && start < end && i < changes.count; start = changes.ends[i++]) {
            has_room = add_record(records, changes.ends[i], changes.dirty ? IOU_EXTENT_DIRTY : 0);
            changes.dirty = !changes.dirty;
        }
    }
    return 0;
}

static int tell_all(struct chain *chain, struct op *op, uint64_t start, uint64_t end, struct records *records) {
    struct changes changes = {.count = 0};
    uint64_t stop, flags;
    for (bool has_room = true; has_room && start < end; start = stop) {
        if (op_canceled(op))
            return op_fail(op, IOU_SYS_NONE, ECANCELED);
        int error = look_for_extent(chain, op, &changes, start, end, &stop, &flags);
        if (error)
            return error;
        has_room = add_record(records, stop, flags);
    }
    return 0;
}

int extents_of_chain(struct op *op) {
    struct chain *chain = chain_of(op->handle);
    struct records records = {.extents = op->buffer, .most = op->buffer_size / sizeof(iou_extent)};
    uint64_t start = op->offset, end = min_u64(op->offset + op->length, chain->image.size);
    bool changes_alone = op->tells && !(op->tells & IOU_EXTENT_ZERO);
    int error = (changes_alone ? tell_changes : tell_all)(chain, op, start, end, &records);
    if (error)
        return error;
    op->result.count = (uint32_t)records.count;
    op_advance(op, records.count ? records.extents[records.count - 1].end - start : 0);
    return 0;
}
