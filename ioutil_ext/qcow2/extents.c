/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>

#include "base/numbers.h"
#include "qcow2/bitmap.h"
#include "qcow2/extents.h"
#include "qcow2/layer.h"

/* What iou_extent tells of a hole. */
enum { NO_HOLE = 0, HOLE = IOU_EXTENT_ZERO, NOWHERE = IOU_EXTENT_ZERO | IOU_EXTENT_HOLE };

/* Find whether what is at pos has changed, as the bitmap of the top says, and its end. pos never goes back. */
static int look_changed(struct chain *chain, struct op *op, struct changes *changes, uint64_t pos, uint64_t *end,
                        bool *dirty) {
    struct qcow2 *q = chain->levels[0].format;
    int error = 0;
    *dirty = false;
    if (!(op->flags & IOU_DIRTY) || !q->bitmap.table)
        return 0;
    for (; changes->next < changes->count && changes->ends[changes->next] <= pos; changes->next++)
        changes->dirty = !changes->dirty;
    if (changes->next == changes->count) {
        pthread_mutex_lock(&q->lock);
        error = bitmap_find(q, op, pos, *end, changes);
        pthread_mutex_unlock(&q->lock);
    }
    *dirty = changes->dirty;
    *end = error ? *end : changes->ends[changes->next];
    return error;
}

/* Find what is in the files at pos: what iou_extent tells of it, and its end. */
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

/* Find what is at pos: what iou_extent tells of it, and its end. What has changed is told without layers: fewer
   records; and without a look at the files, if nothing else is asked for. */
static int look_for_extent(struct chain *chain, struct op *op, struct changes *changes, uint64_t pos, uint64_t end,
                           uint64_t *stop, uint64_t *flags) {
    bool dirty;
    int error = look_changed(chain, op, changes, pos, &end, &dirty);
    *stop = end;
    *flags = 0;
    if (!error && !(op->tells && !(op->tells & IOU_EXTENT_ZERO)))
        error = look_at_files(chain, op, pos, end, stop, flags);
    if (op->flags & IOU_DIRTY)
        *flags = (*flags & IOU_EXTENT_ZERO) | (dirty ? IOU_EXTENT_DIRTY : 0);
    return error;
}

int extents_of_chain(struct op *op) {
    struct chain *chain = chain_of(op->handle);
    struct changes changes = {.count = 0};
    iou_extent *extents = op->buffer;
    uint64_t most = op->buffer_size / sizeof(*extents), count = 0, stop;
    uint64_t start = op->offset, end = min_u64(op->offset + op->length, chain->image.size);
    for (uint64_t flags; start < end; start = stop) {
        if (op_canceled(op))
            return op_fail(op, IOU_SYS_NONE, ECANCELED);
        int error = look_for_extent(chain, op, &changes, start, end, &stop, &flags);
        if (error)
            return error;
        if (count && extents[count - 1].flags == flags)
            extents[count - 1].end = stop;
        else if (count == most)
            break;
        else
            extents[count++] = (iou_extent){.end = stop, .flags = flags};
    }
    op->result.count = (uint32_t)count;
    op_advance(op, min_u64(start, end) - op->offset);
    return 0;
}
