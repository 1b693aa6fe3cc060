/* SPDX-License-Identifier: Apache-2.0 */

#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/grace.h"
#include "qcow2/image.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"
#include "qcow2/open.h"
#include "qcow2/space.h"

/* Cut off what the file has grown by in advance, and trailing clusters that are free. */
static void cut_tail(struct qcow2 *q, struct op *op) {
    struct space *space = &q->space;
    while (space->tail && !bits_test(&space->used, space->tail - 1))
        space->tail--;
    if (space->tail_zeros && !q->flushing.error)
        layer_set_size(op, q->file, space->tail << q->cluster_bits);
}

/* The second flush writes the counts of clusters that the first one has freed. A caller that needs to know of failures
   has flushed before. */
static void finish_close(struct qcow2 *q, struct op *op) {
    bool changed = q->cache.dirty || q->unlinked.count || q->due.count || q->waiting.count;
    int error = changed ? flush_run(q, op) : 0;
    if (!error && q->cache.dirty)
        error = flush_run(q, op);
    if (!error)
        cut_tail(q, op);
}

static void destroy(struct qcow2 *q) {
    if (!q)
        return;
    cache_destroy(q);
    free(q->l1);
    free(q->bitmap.table);
    free(q->refcount_table);
    bits_free(&q->l1_dirty);
    bits_free(&q->refcount_dirty);
    bits_free(&q->refcount_new);
    bits_free(&q->space.used);
    bits_free(&q->space.zeros);
    frees_free(&q->unlinked);
    frees_free(&q->due);
    frees_free(&q->waiting);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

void close_files(struct chain *chain) {
    for (uint32_t i = 0; i < chain->count; i++) {
        destroy(chain->levels[i].format);
        if (chain->levels[i].file)
            handle_end(chain->levels[i].file);
    }
    image_end_generations(&chain->image);
    image_destroy(&chain->image);
    free(chain);
}

void close_chain(iou_handle *handle) {
    struct chain *chain = chain_of(handle);
    struct op op = {.handle = handle, .kind = IOU_FLUSH, .turn_end = UINT64_MAX};
    if (handle->writable)
        finish_close(chain->levels[0].format, &op);
    close_files(chain);
}
