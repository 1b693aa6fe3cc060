/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Slabs: one huge page each, cut into pieces of one size. Each device has slabs of its own, so that a device that hangs
 * does not hold slabs that others could use. Some unused slabs are kept.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "quota/pool.h"

#define MEMORY_CLASSES 4
#define SLAB_PIECES 32 /* of the smallest class */

/* The sizes of pieces, for the requests of programs: 4 KiB of a guest, 256 KiB of nbdcopy, 1 MiB of HTTP, 2 MiB of
   qemu-img. */
static const size_t SIZES[MEMORY_CLASSES] = {64 * KIB, 256 * KIB, MIB, MEMORY_PIECE};

_Static_assert(SLAB_PIECES * 64 * KIB == MEMORY_PIECE && SLAB_PIECES <= 32, "a bit for each piece");

/* Most bytes of unused slabs that are kept: as much as a busy connection of nbdcopy uses. */
#define KEPT (16 * MIB)

/* MEMORY_PIECE bytes in pieces of one size, all for one device. */
struct slab {
    struct link link; /* in device->slabs, those with free pieces first, or in pool->kept */
    struct device_slabs *device;
    char *data;
    int class;
    uint32_t free; /* a bit for each free piece */
    struct memory pieces[SLAB_PIECES];
};

/* The slabs of a file system or block device. Their number is limited: a device that hangs must not have all. */
struct device_slabs {
    struct device_slabs *next;
    uint64_t id, used; /* bytes of slabs */
    uint32_t users;
    bool has_long;
    struct link slabs[MEMORY_CLASSES];
    struct device_limit limit;
};

/* ---- mappings --------------------------------------------------------------------------------------------------- */

/*
 * Memory of huge pages, if the system has some. A device then gets a piece in one segment, not in one for each page.
 * Measured with direct I/O on a virtio disk without indirect descriptors, 4 connections of HTTP and requests of 64 MiB:
 * 45 and 48 GETs in 5 s became 58 and 81, 69 and 77 PUTs became 92 and 100, and the slowest request took 1.1 times as
 * long as the median, instead of 5 times.
 */
char *slab_map(size_t size) {
    size_t room = size + MEMORY_PIECE;
    char *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)start % MEMORY_PIECE, behind = room - before - size;
    if (before)
        munmap(start, before);
    if (behind)
        munmap(start + before + size, behind);
    madvise(start + before, size, MADV_HUGEPAGE); /* EINVAL: a kernel without huge pages */
    return start + before;
}

static struct slab *new_slab(struct memory_pool *pool) {
    struct slab *slab = malloc(sizeof(*slab));
    if (!slab)
        return NULL;
    slab->data = slab_map(MEMORY_PIECE);
    if (!slab->data) {
        free(slab);
        return NULL;
    }
    slab->class = MEMORY_CLASSES;
    pool->used += MEMORY_PIECE;
    return slab;
}

static void free_slab(struct memory_pool *pool, struct slab *slab) {
    munmap(slab->data, MEMORY_PIECE);
    free(slab);
    pool->used -= MEMORY_PIECE;
}

/* ---- classes ---------------------------------------------------------------------------------------------------- */

/* size: at most MEMORY_PIECE. */
static int class_of(size_t size) {
    int class = 0;
    while (SIZES[class] < size)
        class++;
    return class;
}

size_t slab_piece(size_t size) {
    return SIZES[class_of(size)];
}

static unsigned pieces_of(int class) {
    return (unsigned)(MEMORY_PIECE / SIZES[class]);
}

/* The bits of all pieces of a slab. */
static uint32_t all_free(int class) {
    return UINT32_MAX >> (SLAB_PIECES - pieces_of(class));
}

/* ---- slabs of devices, and kept slabs --------------------------------------------------------------------------- */

static struct slab *take_kept_slab(struct memory_pool *pool) {
    struct slab *slab = container_of(link_take(&pool->kept), struct slab, link);
    pool->kept_size -= MEMORY_PIECE;
    return slab;
}

static void cut_slab(struct slab *slab, int class) {
    slab->class = class;
    slab->free = all_free(class);
    for (unsigned i = 0; i < pieces_of(class); i++)
        slab->pieces[i] = (struct memory){slab, slab->data + i * SIZES[class], SIZES[class], 0};
}

static void give_slab(struct device_slabs *device, struct slab *slab, int class) {
    if (slab->class != class)
        cut_slab(slab, class);
    slab->device = device;
    device->used += MEMORY_PIECE;
    link_append(device->slabs[class].next, &slab->link);
}

/* Take back a slab without used pieces: keep it, or give it back to the system. */
static void return_slab(struct memory_pool *pool, struct slab *slab) {
    slab->device->used -= MEMORY_PIECE;
    link_remove(&slab->link);
    if (pool->kept_size + MEMORY_PIECE > KEPT) {
        free_slab(pool, slab);
        return;
    }
    link_append(pool->kept.next, &slab->link);
    pool->kept_size += MEMORY_PIECE;
}

/* ---- devices ---------------------------------------------------------------------------------------------------- */

static struct device_slabs *find_slabs(struct memory_pool *pool, uint64_t id) {
    struct device_slabs *device = pool->devices;
    while (device && device->id != id)
        device = device->next;
    if (!device && (device = calloc(1, sizeof(*device)))) {
        device->id = id;
        for (int class = 0; class < MEMORY_CLASSES; class++)
            link_init(&device->slabs[class]);
        limit_init(&device->limit);
        device->next = pool->devices;
        pool->devices = device;
    }
    return device;
}

struct device_slabs *slab_join(struct memory_pool *pool, uint64_t id) {
    struct device_slabs *device = find_slabs(pool, id);
    if (device)
        device->users++;
    return device;
}

void slab_part(struct memory_pool *pool, struct device_slabs *device) {
    struct device_slabs **where = &pool->devices;
    if (--device->users)
        return;
    while (*where != device)
        where = &(*where)->next;
    *where = device->next;
    limit_destroy(&device->limit);
    free(device);
}

struct device_limit *slab_limit(struct device_slabs *device) {
    return &device->limit;
}

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

/* A device has at most three times what it leaves for others. One that has none may have the last slab, so that each of
   many devices has something. */
uint64_t slab_left(const struct memory_pool *pool, const struct device_slabs *device) {
    uint64_t all = pool->limit - (pool->used - pool->kept_size);
    uint64_t own = (3 * all - min_u64(device->used, 3 * all)) / 4;
    return round_down(device->used ? own : max_u64(own, min_u64(all, MEMORY_PIECE)), MEMORY_PIECE);
}

/* Make sure that the device's first slab of this class has a free piece. */
static int find_slab(struct memory_pool *pool, struct device_slabs *device, int class) {
    const struct link *slabs = &device->slabs[class];
    if (!link_empty(slabs) && container_of(slabs->next, struct slab, link)->free)
        return 0;
    if (slab_left(pool, device) == 0)
        return -EAGAIN;
    struct slab *slab = link_empty(&pool->kept) ? new_slab(pool) : take_kept_slab(pool);
    if (!slab)
        return -ENOMEM;
    give_slab(device, slab, class);
    return 0;
}

int slab_take(struct memory_pool *pool, struct device_slabs *device, size_t size, struct memory **memory) {
    int class = class_of(size);
    struct link *slabs = &device->slabs[class];
    int error = find_slab(pool, device, class);
    if (error)
        return error;
    struct slab *slab = container_of(slabs->next, struct slab, link);
    *memory = &slab->pieces[__builtin_ctz(slab->free)];
    slab->free &= slab->free - 1;
    if (!slab->free) {
        link_remove(&slab->link);
        link_append(slabs, &slab->link);
    }
    return 0;
}

void slab_put(struct memory_pool *pool, struct memory *memory) {
    struct slab *slab = memory->slab;
    slab->free |= 1u << (memory - slab->pieces);
    if (slab->free == all_free(slab->class)) {
        return_slab(pool, slab);
        return;
    }
    link_remove(&slab->link);
    link_append(slab->device->slabs[slab->class].next, &slab->link); /* first: it is in the caches */
}

void slab_free_kept(struct memory_pool *pool) {
    while (!link_empty(&pool->kept))
        free_slab(pool, take_kept_slab(pool));
}

/* ---- long READs ------------------------------------------------------------------------------------------------- */

bool slab_begin_long(struct memory_pool *pool, struct device_slabs *device, size_t charged) {
    if (device->has_long)
        return false;
    device->has_long = true;
    device->used += charged;
    pool->used += charged;
    if (pool->used > pool->limit)
        slab_free_kept(pool);
    return true;
}

void slab_end_long(struct memory_pool *pool, struct device_slabs *device, size_t charged) {
    device->has_long = false;
    device->used -= charged;
    pool->used -= charged;
}
