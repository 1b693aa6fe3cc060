/* SPDX-License-Identifier: Apache-2.0 */

#include "qcow2/chain.h"
#include "base/numbers.h"
#include "qcow2/grace.h"
#include "qcow2/layer.h"

/* Look in one file. In the top, this also enters the phase of grace. Files below do not change, so they need none. */
static int look_in_file(const struct level *level, struct op *op, bool top, uint64_t length, struct run *run) {
    struct qcow2 *q = level->format;
    run->level = level;
    if (!q) {
        run->mapping = (struct mapping){.kind = KIND_DATA, .host = run->pos, .length = length};
        return 0;
    }
    pthread_mutex_lock(&q->lock);
    int error = map_find(q, op, run->pos, length, &run->mapping);
    if (!error && top)
        run->phase = grace_enter(q);
    pthread_mutex_unlock(&q->lock);
    return error;
}

void chain_leave(struct chain *chain, const struct run *run) {
    struct qcow2 *top = chain->levels[0].format;
    pthread_mutex_lock(&top->lock);
    grace_leave(top, run->phase);
    pthread_mutex_unlock(&top->lock);
}

/* A search that begins below the top enters the top's phase, too, so that chain_leave() is the same for all runs. */
static void enter_phase(struct chain *chain, struct run *run) {
    struct qcow2 *top = chain->levels[0].format;
    pthread_mutex_lock(&top->lock);
    run->phase = grace_enter(top);
    pthread_mutex_unlock(&top->lock);
}

/* A file below may be shorter. It reads as zeros behind its end, and files below it are not searched, as in qemu. */
int chain_find(struct chain *chain, struct op *op, uint32_t first, uint64_t pos, uint64_t length, struct run *run) {
    int error = 0;
    *run = (struct run){.pos = pos, .mapping = {.kind = KIND_UNALLOCATED}};
    if (first > 0)
        enter_phase(chain, run);
    for (uint32_t i = first; !error && i < chain->count && run->mapping.kind == KIND_UNALLOCATED; i++) {
        if (pos >= chain->levels[i].size) {
            run->mapping.kind = KIND_ZERO;
            break;
        }
        length = min_u64(length, chain->levels[i].size - pos);
        error = look_in_file(&chain->levels[i], op, i == 0, length, run);
        if (!error)
            length = run->mapping.length;
        else if (i > 0)
            chain_leave(chain, run);
    }
    run->mapping.length = length;
    return error;
}

int chain_read_run(struct op *op, const struct run *run, void *to) {
    const struct mapping *mapping = &run->mapping;
    struct qcow2 *q = run->level ? run->level->format : NULL;
    switch (mapping->kind) {
    case KIND_DATA:
        return layer_read(op, run->level->file, to, mapping->host, mapping->length);
    case KIND_COMPRESSED:
        return compressed_read(q, op, mapping->entry, run->pos & (q->cluster - 1), mapping->length, to);
    default:
        memset(to, 0, mapping->length);
        return 0;
    }
}

int chain_read(struct chain *chain, struct op *op, uint32_t first, void *to, uint64_t pos, uint64_t length) {
    struct run run;
    for (uint64_t done = 0; done < length; done += run.mapping.length) {
        int error = chain_find(chain, op, first, pos + done, length - done, &run);
        if (error)
            return error;
        error = chain_read_run(op, &run, (char *)to + done);
        chain_leave(chain, &run);
        if (error)
            return error;
    }
    return 0;
}

/* *zero: whether the run reads as zeros. A raw file is searched for holes only for a range that is to be written. */
static int is_raw_hole(struct op *op, const struct run *run, bool *zero) {
    uint64_t start = run->mapping.host, end = start + run->mapping.length, stop = end;
    if (run->mapping.kind != KIND_DATA || run->level->format) {
        *zero = run->mapping.kind == KIND_ZERO || run->mapping.kind == KIND_UNALLOCATED;
        return 0;
    }
    int error = layer_extent(op, run->level->file, start, end, &stop, zero);
    *zero &= stop == end;
    return error;
}

int chain_is_zero(struct chain *chain, struct op *op, uint32_t first, uint64_t pos, uint64_t length, bool *zero) {
    struct run run;
    *zero = true;
    for (uint64_t done = 0; *zero && done < length; done += run.mapping.length) {
        int error = chain_find(chain, op, first, pos + done, length - done, &run);
        if (error)
            return error;
        error = is_raw_hole(op, &run, zero);
        chain_leave(chain, &run);
        if (error)
            return error;
    }
    return 0;
}
