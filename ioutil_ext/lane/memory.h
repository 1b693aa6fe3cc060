/* SPDX-License-Identifier: Apache-2.0 */

/* Memory for the data of requests: who may have what (memory.c), and waiting for it (memory_wait.c). */

#ifndef IOUTIL_LANE_MEMORY_H
#define IOUTIL_LANE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/link.h"
#include "lane/slabs.h"
#include "lane/waiters.h"

/* One request at a time, of all lanes, may have so much in one piece. */
#define LANE_LONG (32 * MIB)

/* A lane's part in what all lanes share. */
struct lane_memory {
    struct device_slabs *slabs;
    struct device_limit *limit;
    struct share *share; /* of the ticket */
    struct link member;  /* in lanes->members */
    uint64_t lent;       /* bytes of pieces; under the lock of lanes */
};

/* The same place in a page as in the image, so that whole blocks are not copied; and the bytes that this takes. */
static inline char *place_in(const struct memory *memory, uint64_t offset) {
    return memory->data + offset % PAGE_UNIT;
}

static inline uint64_t room_for(uint64_t offset, uint64_t length) {
    return offset % PAGE_UNIT + length;
}

/* Whether more is waited for: not at all, or as long as the request may go on. */
enum memory_patience { MEMORY_NOW, MEMORY_WAIT };

/*
 * Get at least size bytes; or wait until there is so much, for the lane, its ticket and its device, but no longer than
 * the timeout without progress. A thread that has some must not wait for more. -EAGAIN: there is none now, and it does
 * not wait; -ENOMEM: nor in time; -EOVERFLOW: there never is; -ECANCELED: the request ends.
 */
int memory_get(struct iou_lane *lane, size_t size, enum memory_patience patience, struct memory **memory);
void memory_put(struct iou_lane *lane, struct memory *memory);

/* Let those who wait look whether their lane ends. */
void memory_wake(struct iou_lanes *lanes);

/* ---- for memory_wait.c ------------------------------------------------------------------------------------------ */

/* A request that may wait. */
struct claimant {
    struct waiter waiter;
    struct iou_lane *lane;
    size_t size;
    enum memory_patience patience;
    struct memory *memory;
    int error; /* 0, -ENOMEM: the system has none, -ECANCELED: the request ends */
};

/* Take the memory, or begin to wait, if it waits at all: -EAGAIN. Errors as memory_get(). */
int memory_ask(struct claimant *claimant);

/* Wait no more, because of error, unless it was served meanwhile: then it is about to be woken. */
void memory_give_up(struct claimant *claimant, int error);

#endif
