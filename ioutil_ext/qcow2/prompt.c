/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operations that a fiber runs itself: those whose tables are in memory, and whose only calls are reads or writes of
 * data. These are asynchronous where those of a raw file are. Decoding, growth of the file, barriers and zeroing keep a
 * thread, and so go to a worker. The tables may change before the operation runs. Then the fiber blocks its thread for
 * a while, and the result is correct.
 */

#include "base/numbers.h"
#include "image/io.h"
#include "qcow2/image.h"
#include "qcow2/map.h"
#include "qcow2/space.h"

static bool is_simple(struct qcow2 *q, struct op *op, uint64_t number, bool writes, bool unbacked) {
    struct mapping mapping;
    const struct slice *slice = cache_peek(q, number >> (q->slice_bits - q->entry_bits));
    if (!slice || map_entry(q, op, map_get(q, slice, number), &mapping))
        return false;
    if (!writes)
        return mapping.kind == KIND_DATA || mapping.kind == KIND_ZERO || (unbacked && mapping.kind == KIND_UNALLOCATED);
    bool fresh = (mapping.kind == KIND_ZERO && !mapping.host) || (unbacked && mapping.kind == KIND_UNALLOCATED);
    return mapping.in_place ||
           (fresh && map_l1(q, number) & ENTRY_COPIED && q->cache.dirty < q->cache.most / 8 && space_has_zeros(q));
}

/* Requests that are longer than a lane's pieces are not looked through: they wait for storage most of the time. */
#define MOST_CLUSTERS 64u

bool prompt_is(const struct op *op) {
    struct chain *chain = chain_of(op->handle);
    struct qcow2 *q = chain->levels[0].format;
    struct op inner = {.handle = q->file, .kind = op->kind, .flags = op->flags, .length = op->length};
    bool moves = op->kind == IOU_READ || op->kind == IOU_WRITE, simple = true;
    inner.buffer = op->buffer;
    if (!moves || !op->length || q->entry_bits != 3 || op->offset + op->length > chain->image.size ||
        !is_aligned(op->offset, op->handle->unit) || !io_is_prompt(&inner))
        return false;
    uint64_t first = op->offset >> q->cluster_bits, last = (op->offset + op->length - 1) >> q->cluster_bits;
    if (last - first >= MOST_CLUSTERS)
        return false;
    pthread_mutex_lock(&q->lock);
    for (uint64_t i = first; simple && i <= last; i++)
        simple = is_simple(q, &inner, i, op->kind == IOU_WRITE, chain->count == 1);
    pthread_mutex_unlock(&q->lock);
    return simple;
}
