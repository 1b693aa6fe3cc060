/* SPDX-License-Identifier: Apache-2.0 */

/* Memory for the data of all lanes: some sizes, which are kept for the next request, and one for long reads. */

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "lane.h"

/* Room for the data and for its place in a page to be the one it has in the image. */
#define ROOM(size) ((size) + 2 * PAGE_UNIT)

/* What requests ask for: 4 KiB of a guest, 256 KiB of nbdcopy, 1 MiB that we prefer, 2 MiB of qemu-img. */
static const size_t SIZES[MEMORY_CLASSES] = {ROOM(64 * KIB), ROOM(256 * KIB), ROOM(MIB), ROOM(2 * MIB),
                                             ROOM(LANE_PIECE)};

/*
 * One READ of NBD at a time may have more, if its reply may not be cut: it has memory of its own, which is all that
 * those who ask for such can keep from each other.
 */
#define MAX_LONG ROOM(LANE_LONG)

_Static_assert(IOU_LANES_MIN_MEMORY >= 4 * ROOM(LANE_PIECE), "some pieces, and half of it for a long read");

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
    lanes->long_limit = min_u64(MAX_LONG, memory / 2 + ROOM(0)); /* 64 MiB is enough for the longest */
    lanes->limit = memory - lanes->long_limit;
    pthread_mutex_init(&lanes->lock, NULL);
    monotonic_cond_init(&lanes->freed);
    *result = lanes;
    return 0;
}

static void destroy(struct memory *memory) {
    munmap(memory->data, memory->size);
    free(memory);
}

static struct memory *create(size_t size) {
    struct memory *memory = malloc(sizeof(*memory));
    if (!memory)
        return NULL;
    memory->size = size;
    memory->data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory->data == MAP_FAILED) {
        free(memory);
        return NULL;
    }
    return memory;
}

/* The lock is held. */
static struct memory *take_kept(struct iou_lanes *lanes, int class) {
    struct memory *memory = lanes->free[class];
    if (memory) {
        lanes->free[class] = memory->next;
        lanes->kept -= memory->size;
    }
    return memory;
}

/* The lock is held. Drop kept memory until size more bytes are within the limit. */
static bool make_room(struct iou_lanes *lanes, size_t size) {
    struct memory *memory;
    for (int class = MEMORY_CLASSES - 1; class >= 0; class--)
        while (lanes->used + size > lanes->limit && (memory = take_kept(lanes, class))) {
            lanes->used -= memory->size;
            destroy(memory);
        }
    return lanes->used + size <= lanes->limit;
}

static int class_of(size_t size) {
    int class = 0;
    while (class < MEMORY_CLASSES && SIZES[class] < size)
        class++;
    return class;
}

/* The lock is held. Who has nothing may have a piece. */
static bool may_have(const struct iou_lane *lane, size_t size) {
    const struct borrower *borrower = lane->borrower;
    return (lane->lent == 0 || lane->lent + size <= LANE_MOST) &&
           (borrower->lent == 0 || borrower->lent + size <= lane->lanes->limit / 4 * 3);
}

/* The lock is held. False: it is to be waited for. */
static bool take_piece(struct iou_lane *lane, int class, struct memory **memory) {
    struct iou_lanes *lanes = lane->lanes;
    if (!may_have(lane, SIZES[class]))
        return false;
    *memory = take_kept(lanes, class);
    if (!*memory && !make_room(lanes, SIZES[class]))
        return false;
    lanes->used += *memory ? 0 : SIZES[class];
    lane->lent += SIZES[class];
    lane->borrower->lent += SIZES[class];
    return true;
}

static bool take(struct iou_lane *lane, int class, struct memory **memory) {
    if (class < MEMORY_CLASSES)
        return take_piece(lane, class, memory);
    bool taken = lane->lanes->long_taken;
    lane->lanes->long_taken = true;
    return !taken;
}

/* The lock is held. */
static void give_back(struct iou_lane *lane, int class) {
    struct iou_lanes *lanes = lane->lanes;
    if (class < MEMORY_CLASSES) {
        lane->lent -= SIZES[class];
        lane->borrower->lent -= SIZES[class];
    } else {
        lanes->long_taken = false;
    }
    if (lanes->waiting)
        pthread_cond_broadcast(&lanes->freed);
}

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
    pthread_mutex_lock(&lanes->lock);
    bool had = (class < MEMORY_CLASSES || size <= lanes->long_limit) && !lane_cuts(lane);
    while (had && !take(lane, class, &memory)) {
        if (wait)
            await_freed(lane);
        had = wait && !lane_cuts(lane);
    }
    pthread_mutex_unlock(&lanes->lock);
    if (!had || memory || (memory = create(class < MEMORY_CLASSES ? SIZES[class] : size)))
        return memory;
    pthread_mutex_lock(&lanes->lock);
    lanes->used -= class < MEMORY_CLASSES ? SIZES[class] : 0;
    give_back(lane, class);
    pthread_mutex_unlock(&lanes->lock);
    return NULL;
}

void memory_put(struct iou_lane *lane, struct memory *memory) {
    struct iou_lanes *lanes = lane->lanes;
    int class = class_of(memory->size);
    pthread_mutex_lock(&lanes->lock);
    bool keep = class < MEMORY_CLASSES && lanes->kept + memory->size <= KEPT;
    if (keep) {
        memory->next = lanes->free[class];
        lanes->free[class] = memory;
        lanes->kept += memory->size;
    } else if (class < MEMORY_CLASSES) {
        lanes->used -= memory->size;
    }
    give_back(lane, class);
    pthread_mutex_unlock(&lanes->lock);
    if (!keep)
        destroy(memory);
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
    for (int class = 0; class < MEMORY_CLASSES; class++)
        for (struct memory *memory; (memory = take_kept(lanes, class));)
            destroy(memory);
    pthread_mutex_destroy(&lanes->lock);
    pthread_cond_destroy(&lanes->freed);
    free(lanes);
    return 0;
}
