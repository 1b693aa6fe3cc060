/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Memory of clusters, beside that of requests: to read 4 KiB of a compressed cluster of 2 MiB takes up to 6 MiB. The
 * memory of each image is bounded, and operations that need more wait, in order of arrival. So storage that hangs
 * occupies memory of its own image only.
 *
 * An operation that merges may also decode, but not the other way round. Merging and decoding have bounds of their own,
 * so operations that decode always end, and so do those that merge.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/numbers.h"
#include "qcow2/chain.h"

/* Enough that 64 tasks decode clusters of 64 KiB at a time. One buffer may be larger than that. */
#define MOST_BYTES (16 * MIB)

struct wish {
    struct waiter waiter;
    uint64_t bytes;
};

static pthread_mutex_t *lock_of(const struct op *op) {
    return &chain_of(op->handle)->levels[0].format->lock;
}

static bool has_room(const struct buffers *buffers, uint64_t bytes) {
    return !buffers->used || buffers->used + bytes <= MOST_BYTES;
}

static void take_room(const struct op *op, struct buffers *buffers, uint64_t bytes) {
    struct wish wish = {.bytes = bytes};
    pthread_mutex_lock(lock_of(op));
    bool waits = !link_empty(&buffers->waiters) || !has_room(buffers, bytes);
    if (waits)
        waiter_join(&wish.waiter, &buffers->waiters);
    else
        buffers->used += bytes;
    pthread_mutex_unlock(lock_of(op));
    if (waits)
        waiter_sleep(&wish.waiter, FOR_EVER);
}

static void leave_room(const struct op *op, struct buffers *buffers, uint64_t bytes) {
    struct link served = LINK_EMPTY(served);
    pthread_mutex_lock(lock_of(op));
    buffers->used -= bytes;
    while (!link_empty(&buffers->waiters)) {
        struct wish *first = container_of(buffers->waiters.next, struct wish, waiter.link);
        if (!has_room(buffers, first->bytes))
            break;
        buffers->used += first->bytes;
        waiter_serve(&first->waiter, &served);
    }
    pthread_mutex_unlock(lock_of(op));
    waiters_wake(&served);
}

/*
 * Whether a buffer is mapped. Large ones are, because the allocator keeps some memory for each thread: 128 reads of
 * clusters of 2 MiB at a time left it with 50 MiB. For clusters of 64 KiB, of zstd, mappings took 0.21 s of processor
 * time for 192 MiB, in place of 0.11.
 */
static bool is_mapped(uint64_t bytes) {
    return bytes > MIB;
}

static void *get_memory(uint64_t bytes) {
    void *memory;
    if (!is_mapped(bytes))
        return posix_memalign(&memory, PAGE_UNIT, bytes) ? NULL : memory;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void *buffers_get(struct op *op, struct buffers *buffers, uint64_t bytes) {
    take_room(op, buffers, bytes);
    void *memory = get_memory(bytes);
    if (!memory) {
        leave_room(op, buffers, bytes);
        op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    }
    return memory;
}

void buffers_free(const struct op *op, struct buffers *buffers, void *memory, uint64_t bytes) {
    if (is_mapped(bytes))
        munmap(memory, bytes);
    else
        free(memory);
    leave_room(op, buffers, bytes);
}
