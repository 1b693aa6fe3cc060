/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The cache of tables. A slice that is dirty, or whose copy is being written, stays: only a flush writes tables, and
 * before that the file has older ones. Of the others, the one that was not used for longest goes first.
 */

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/grace.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"

/* Memory for slices of one image: the L2 tables of 256 GiB with clusters of 64 KiB, as much as qemu has. */
#define MOST_BYTES (32 * MIB)

/* Slices of one allocation. */
#define BLOCK_SLICES 16u

struct block {
    struct block *next;
    uint8_t *data;
    struct slice slices[BLOCK_SLICES];
};

int cache_init(struct qcow2 *q) {
    struct cache *cache = &q->cache;
    cache->most = MOST_BYTES >> q->slice_bits;
    cache->bucket_bits = 12;
    cache->buckets = malloc(sizeof(*cache->buckets) << cache->bucket_bits);
    if (!cache->buckets)
        return -ENOMEM;
    for (size_t i = 0; i < (size_t)1 << cache->bucket_bits; i++)
        link_init(&cache->buckets[i]);
    link_init(&cache->order);
    link_init(&cache->spare);
    return 0;
}

void cache_destroy(struct qcow2 *q) {
    for (struct block *block = q->cache.blocks, *next; block; block = next) {
        next = block->next;
        free(block->data);
        free(block);
    }
    free(q->cache.buckets);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static void add_cache_block(struct qcow2 *q) {
    struct cache *cache = &q->cache;
    struct block *block = calloc(1, sizeof(*block));
    void *data;
    if (!block || posix_memalign(&data, PAGE_UNIT, (size_t)BLOCK_SLICES << q->slice_bits)) {
        free(block);
        return;
    }
    block->data = data;
    block->next = cache->blocks;
    cache->blocks = block;
    q->counts.table_bytes += (uint64_t)BLOCK_SLICES << q->slice_bits;
    for (unsigned i = 0; i < BLOCK_SLICES; i++) {
        block->slices[i].data = block->data + ((size_t)i << q->slice_bits);
        link_append(&cache->spare, &block->slices[i].order);
    }
}

static bool is_slice_idle(const struct slice *slice) {
    return !slice->pins && !slice->loading && !slice->dirty && !slice->writing;
}

/* Forget the slice that was not used for longest. NULL: all are needed. */
static struct slice *evict(struct cache *cache) {
    for (struct link *node = cache->order.next; node != &cache->order; node = node->next) {
        struct slice *slice = container_of(node, struct slice, order);
        if (!is_slice_idle(slice))
            continue;
        link_remove(&slice->hash);
        link_remove(&slice->order);
        cache->count--;
        return slice;
    }
    return NULL;
}

static struct slice *take_memory(struct qcow2 *q) {
    struct cache *cache = &q->cache;
    struct slice *slice = cache->count >= cache->most ? evict(cache) : NULL;
    if (!slice && link_empty(&cache->spare))
        add_cache_block(q);
    if (!slice && !link_empty(&cache->spare))
        slice = container_of(link_take(&cache->spare), struct slice, order);
    return slice ? slice : evict(cache);
}

/* ---- slices ----------------------------------------------------------------------------------------------------- */

static struct link *bucket_of(struct cache *cache, uint64_t key) {
    return &cache->buckets[(key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - cache->bucket_bits)];
}

static struct slice *find_slice(struct cache *cache, uint64_t key) {
    struct link *bucket = bucket_of(cache, key);
    for (struct link *node = bucket->next; node != bucket; node = node->next)
        if (container_of(node, struct slice, hash)->key == key)
            return container_of(node, struct slice, hash);
    return NULL;
}

const struct slice *cache_peek(struct qcow2 *q, uint64_t key) {
    const struct slice *slice = find_slice(&q->cache, key);
    return slice && !slice->loading ? slice : NULL;
}

static int load(struct qcow2 *q, struct op *op, struct slice *slice, uint64_t host) {
    pthread_mutex_unlock(&q->lock);
    int error = layer_read(op, q->file, slice->data, host, UINT64_C(1) << q->slice_bits);
    pthread_mutex_lock(&q->lock);
    slice->loading = false;
    q->counts.table_reads++;
    if (error) {
        link_remove(&slice->hash);
        link_remove(&slice->order);
        link_append(&q->cache.spare, &slice->order);
        q->cache.count--;
    }
    slice->pins += !error; /* it stays while the lock is not held */
    qcow2_wake(q, &slice->waiters);
    slice->pins -= !error;
    return error;
}

int cache_get(struct qcow2 *q, struct op *op, uint64_t key, uint64_t host, struct slice **result) {
    struct cache *cache = &q->cache;
    struct slice *slice;
    while ((slice = find_slice(cache, key)) && slice->loading)
        qcow2_await(q, &slice->waiters);
    if (slice) {
        link_remove(&slice->order);
        link_append(&cache->order, &slice->order);
    } else {
        slice = take_memory(q);
        if (!slice)
            return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
        slice->key = key;
        slice->loading = true;
        link_init(&slice->waiters);
        link_append(bucket_of(cache, key), &slice->hash);
        link_append(&cache->order, &slice->order);
        cache->count++;
        int error = load(q, op, slice, host);
        if (error)
            return error;
    }
    slice->pins++;
    *result = slice;
    return 0;
}

void cache_dirty(struct qcow2 *q, struct slice *slice) {
    q->cache.dirty += !slice->dirty;
    slice->dirty = true;
}
