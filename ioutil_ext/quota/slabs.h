/* SPDX-License-Identifier: Apache-2.0 */

/* Slabs: the memory of the pool (slabs.c), from which memory.c lends pieces. */

#ifndef IOUTIL_QUOTA_SLABS_H
#define IOUTIL_QUOTA_SLABS_H

#include <stddef.h>
#include <stdint.h>

#include "base/numbers.h"
#include "quota/device_limit.h"
#include "quota/pool.h"

/* Bytes of the largest piece of memory, and of a slab, from which pieces are cut: a huge page. */
#define MEMORY_PIECE (2 * MIB)

/* A piece of page-aligned memory. slab: NULL: memory of a long READ. */
struct memory {
    struct slab *slab;
    char *data;
    size_t size;
};

/* Map memory, of huge pages if the system has some. size: a multiple of MEMORY_PIECE. NULL: no memory. */
char *slab_map(size_t size);

/* Return the size of the smallest piece that has so many bytes, at most MEMORY_PIECE. */
size_t slab_piece(size_t size);

/* Give unused slabs back to the system. Called with the lock of the pool, or when no other thread uses them. */
void slab_free_kept(struct memory_pool *pool);

/* The lock of the pool is held from here on. A user joins the memory of its device, and leaves it. NULL: no memory. */
struct device_slabs *slab_join(struct memory_pool *pool, uint64_t device);
void slab_part(struct memory_pool *pool, struct device_slabs *slabs);

struct device_limit *slab_limit(struct device_slabs *slabs);

/* Return how many further bytes of slabs a device may have. */
uint64_t slab_left(const struct memory_pool *pool, const struct device_slabs *slabs);

/* Take a piece of at least size bytes. -EAGAIN: there is none until another one is given back; -ENOMEM. */
int slab_take(struct memory_pool *pool, struct device_slabs *slabs, size_t size, struct memory **memory);
void slab_put(struct memory_pool *pool, struct memory *memory);

#endif
