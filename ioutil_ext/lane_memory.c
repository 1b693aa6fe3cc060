/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Memory for the data of all lanes: slabs of one huge page each, cut in pieces, and one piece for long reads. A device
 * has slabs of its own, so that one which hangs holds nothing that others could use.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "lane.h"

/* What requests ask for: 4 KiB of a guest, 256 KiB of nbdcopy, 1 MiB of HTTP, 2 MiB of qemu-img. */
static const size_t SIZES[MEMORY_CLASSES] = {64 * KIB, 256 * KIB, MIB, LANE_PIECE};

_Static_assert(SLAB_PIECES * 64 * KIB == LANE_PIECE && SLAB_PIECES <= 32, "a bit for each piece");

/*
 * One READ of NBD at a time may have more, if its reply may not be cut: it has memory of its own, which is all that
 * those who ask for such can keep from each other.
 */
#define MAX_LONG (LANE_LONG + PAGE_UNIT)

_Static_assert(IOU_LANES_MIN_MEMORY >= 8 * LANE_PIECE + 2 * PAGE_UNIT, "some slabs, and half of it for a long read");

/* What is kept while nobody uses it: what a busy connection of nbdcopy uses. */
#define KEPT (16 * MIB)

/* What one lane may have at a time, if it has more than one piece: longer queues leave the caches before they are sent.
 */
#define LANE_MOST (16 * MIB)

int iou_lanes_new(iou_engine *engine, uint64_t memory, iou_lanes **result) {
    if (engine_is_foreign(engine))
        return -ECHILD;
    if (memory < IOU_LANES_MIN_MEMORY || memory > INT64_MAX || !result)
        return -EINVAL;
    iou_lanes *lanes = calloc(1, sizeof(*lanes));
    if (!lanes)
        return -ENOMEM;
    lanes->engine = engine;
    lanes->born = fork_generation();
    lanes->long_limit = min_u64(MAX_LONG, memory / 2 + PAGE_UNIT); /* 64 MiB is enough for the longest */
    lanes->limit = memory - lanes->long_limit;
    link_init(&lanes->kept);
    pthread_mutex_init(&lanes->lock, NULL);
    monotonic_cond_init(&lanes->freed);
    *result = lanes;
    return 0;
}

/* ---- mappings --------------------------------------------------------------------------------------------------- */

/*
 * Memory of huge pages, if the system has some. A device takes a piece in one segment then, not one for each page:
 * direct I/O on a virtio disk without indirect descriptors, 4 connections of HTTP and requests of 64 MiB: 45 and 48 GET
 * in 5 s became 58 and 81, 69 and 77 PUT became 92 and 100, and the slowest took 1.1 times as long as the median,
 * not 5.
 */
static char *map(size_t size) {
    size_t room = size + LANE_PIECE;
    char *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    size_t before = -(uintptr_t)start % LANE_PIECE, behind = room - before - size;
    if (before)
        munmap(start, before);
    if (behind)
        munmap(start + before + size, behind);
    madvise(start + before, size, MADV_HUGEPAGE); /* EINVAL: a kernel without them */
    return start + before;
}

/* ---- slabs; the lock is held ------------------------------------------------------------------------------------ */

/* The bits of all pieces of a slab. */
static uint32_t all_free(int class) {
    return UINT32_MAX >> (SLAB_PIECES - LANE_PIECE / SIZES[class]);
}

static struct slab *new_slab(struct iou_lanes *lanes) {
    struct slab *slab = malloc(sizeof(*slab));
    if (!slab)
        return NULL;
    slab->data = map(LANE_PIECE);
    if (!slab->data) {
        free(slab);
        return NULL;
    }
    slab->class = MEMORY_CLASSES;
    lanes->used += LANE_PIECE;
    return slab;
}

static void free_slab(struct iou_lanes *lanes, struct slab *slab) {
    munmap(slab->data, LANE_PIECE);
    free(slab);
    lanes->used -= LANE_PIECE;
}

static struct slab *take_kept(struct iou_lanes *lanes) {
    struct slab *slab = container_of(lanes->kept.next, struct slab, link);
    link_remove(&slab->link);
    lanes->kept_size -= LANE_PIECE;
    return slab;
}

static void cut(struct slab *slab, int class) {
    unsigned count = (unsigned)(LANE_PIECE / SIZES[class]);
    slab->class = class;
    slab->free = all_free(class);
    for (unsigned i = 0; i < count; i++)
        slab->pieces[i] = (struct memory){slab, slab->data + i * SIZES[class], SIZES[class]};
}

static void give_slab(struct borrower *borrower, struct slab *slab, int class) {
    if (slab->class != class)
        cut(slab, class);
    slab->borrower = borrower;
    borrower->lent += LANE_PIECE;
    link_append(borrower->slabs[class].next, &slab->link);
}

/* Nobody uses it any more. */
static void return_slab(struct iou_lanes *lanes, struct slab *slab) {
    slab->borrower->lent -= LANE_PIECE;
    link_remove(&slab->link);
    if (lanes->kept_size + LANE_PIECE > KEPT) {
        free_slab(lanes, slab);
        return;
    }
    link_append(lanes->kept.next, &slab->link);
    lanes->kept_size += LANE_PIECE;
}

/* ---- pieces; the lock is held ----------------------------------------------------------------------------------- */

enum taken { TAKEN, WAIT, FAILED };

static int class_of(size_t size) {
    int class = 0;
    while (class < MEMORY_CLASSES && SIZES[class] < size)
        class++;
    return class;
}

/* See to it that the device's first slab of this class has a piece. Who has nothing may have a slab. */
static enum taken find_slab(struct iou_lanes *lanes, struct borrower *borrower, int class) {
    const struct link *slabs = &borrower->slabs[class];
    if (!link_empty(slabs) && container_of(slabs->next, struct slab, link)->free)
        return TAKEN;
    if (borrower->lent && borrower->lent + LANE_PIECE > lanes->limit / 4 * 3)
        return WAIT;
    if (link_empty(&lanes->kept) && lanes->used + LANE_PIECE > lanes->limit)
        return WAIT;
    struct slab *slab = link_empty(&lanes->kept) ? new_slab(lanes) : take_kept(lanes);
    if (!slab)
        return FAILED;
    give_slab(borrower, slab, class);
    return TAKEN;
}

static enum taken take_piece(struct iou_lane *lane, int class, struct memory **memory) {
    struct link *slabs = &lane->borrower->slabs[class];
    if (lane->lent && lane->lent + SIZES[class] > LANE_MOST)
        return WAIT;
    enum taken found = find_slab(lane->lanes, lane->borrower, class);
    if (found != TAKEN)
        return found;
    struct slab *slab = container_of(slabs->next, struct slab, link);
    *memory = &slab->pieces[__builtin_ctz(slab->free)];
    slab->free &= slab->free - 1;
    if (!slab->free) {
        link_remove(&slab->link);
        link_append(slabs, &slab->link);
    }
    lane->lent += SIZES[class];
    return TAKEN;
}

static void put_piece(struct iou_lane *lane, struct memory *memory) {
    struct slab *slab = memory->slab;
    slab->free |= 1u << (memory - slab->pieces);
    lane->lent -= memory->size;
    if (slab->free == all_free(slab->class)) {
        return_slab(lane->lanes, slab);
        return;
    }
    link_remove(&slab->link);
    link_append(slab->borrower->slabs[slab->class].next, &slab->link); /* first: it is in the caches */
}

/* ---- long ones -------------------------------------------------------------------------------------------------- */

/* The lock is held. */
static enum taken take_long(struct iou_lanes *lanes, size_t size, struct memory **memory) {
    if (lanes->long_taken)
        return WAIT;
    struct memory *taken = malloc(sizeof(*taken));
    if (!taken)
        return FAILED;
    *taken = (struct memory){NULL, map(size), size};
    if (!taken->data) {
        free(taken);
        return FAILED;
    }
    lanes->long_taken = true;
    *memory = taken;
    return TAKEN;
}

static void free_long(struct memory *memory) {
    munmap(memory->data, memory->size);
    free(memory);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

/* Wait for others to give back, but no longer than the request may go on. The lock is held. */
static void await_freed(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    uint64_t expires = __atomic_load_n(&lane->lease->expires, __ATOMIC_RELAXED);
    struct timespec deadline = {.tv_sec = (time_t)(expires / 1000000000u), .tv_nsec = (long)(expires % 1000000000u)};
    lanes->waiting++;
    if (lane->kind->finishes)
        pthread_cond_wait(&lanes->freed, &lanes->lock);
    else
        pthread_cond_timedwait(&lanes->freed, &lanes->lock, &deadline);
    lanes->waiting--;
}

struct memory *memory_get(struct iou_lane *lane, size_t size, bool wait) {
    struct iou_lanes *lanes = lane->lanes;
    struct memory *memory = NULL;
    int class = class_of(size);
    enum taken taken = FAILED;
    pthread_mutex_lock(&lanes->lock);
    if (class < MEMORY_CLASSES || size <= lanes->long_limit)
        while (!lane_cuts(lane)) {
            taken = class < MEMORY_CLASSES ? take_piece(lane, class, &memory) : take_long(lanes, size, &memory);
            if (taken != WAIT || !wait)
                break;
            await_freed(lane);
        }
    pthread_mutex_unlock(&lanes->lock);
    return memory;
}

void memory_put(struct iou_lane *lane, struct memory *memory) {
    struct iou_lanes *lanes = lane->lanes;
    bool is_long = !memory->slab;
    if (is_long)
        free_long(memory);
    pthread_mutex_lock(&lanes->lock);
    if (is_long)
        lanes->long_taken = false;
    else
        put_piece(lane, memory);
    if (lanes->waiting)
        pthread_cond_broadcast(&lanes->freed);
    pthread_mutex_unlock(&lanes->lock);
}

void memory_wake(struct iou_lanes *lanes) {
    pthread_mutex_lock(&lanes->lock);
    pthread_cond_broadcast(&lanes->freed);
    pthread_mutex_unlock(&lanes->lock);
}

/* ---- lanes come and go ------------------------------------------------------------------------------------------ */

/* The lock is held. NULL: no memory. */
static struct borrower *find_borrower(struct iou_lanes *lanes, uint64_t device) {
    struct borrower *borrower = lanes->borrowers;
    while (borrower && borrower->device != device)
        borrower = borrower->next;
    if (!borrower && (borrower = calloc(1, sizeof(*borrower)))) {
        borrower->device = device;
        for (int class = 0; class < MEMORY_CLASSES; class++)
            link_init(&borrower->slabs[class]);
        borrower->next = lanes->borrowers;
        lanes->borrowers = borrower;
    }
    return borrower;
}

int memory_join(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    pthread_mutex_lock(&lanes->lock);
    lane->borrower = find_borrower(lanes, lane->handle->image->device);
    if (lane->borrower) {
        lane->borrower->lanes++;
        lanes->count++;
    }
    pthread_mutex_unlock(&lanes->lock);
    return lane->borrower ? 0 : -ENOMEM;
}

void memory_part(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    if (!lane->borrower)
        return;
    pthread_mutex_lock(&lanes->lock);
    lanes->count--;
    if (--lane->borrower->lanes == 0) {
        struct borrower **where = &lanes->borrowers;
        while (*where != lane->borrower)
            where = &(*where)->next;
        *where = lane->borrower->next;
        free(lane->borrower);
    }
    pthread_mutex_unlock(&lanes->lock);
}

int iou_lanes_free(iou_lanes *lanes) {
    if (lanes_are_foreign(lanes))
        return -ECHILD;
    pthread_mutex_lock(&lanes->lock);
    bool busy = lanes->count;
    pthread_mutex_unlock(&lanes->lock);
    if (busy)
        return -EBUSY;
    while (!link_empty(&lanes->kept))
        free_slab(lanes, take_kept(lanes));
    pthread_mutex_destroy(&lanes->lock);
    pthread_cond_destroy(&lanes->freed);
    free(lanes);
    return 0;
}
