/* SPDX-License-Identifier: Apache-2.0 */

/* Memory for the data of requests: quotas (memory.c), and waiting for memory (memory_wait.c). */

#ifndef IOUTIL_LANE_MEMORY_H
#define IOUTIL_LANE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "api/zstd.h"
#include "base/link.h"
#include "base/waiter.h"
#include "lane/slabs.h"

/*
 * A request waits for the memory of a decoder for so long. Decoders that have bytes of a fast link end frames of a MiB
 * within some ms, and those that rest are ended after 250 ms. Who waits longer is better off without compression.
 */
#define LANE_WINDOW_MS 2000u

/* One request of all lanes at a time may have one piece of so many bytes. */
#define LANE_LONG (32 * MIB)

/* A lane's part in the memory that all lanes share. */
struct lane_memory {
    struct device_slabs *slabs;
    struct limit_share *share; /* of the ticket in what its device does at a time */
    struct ticket_quota *quota;
    struct link member; /* in lanes->members */
    uint64_t used;      /* bytes of pieces; under the lock of lanes */
};

/* Data has the same offset in a page of memory as in the image, so that direct I/O need not copy whole blocks.
   room_for() returns the bytes of memory that this takes. */
static inline char *place_in(const struct memory *memory, uint64_t offset) {
    return memory->data + offset % PAGE_UNIT;
}

static inline uint64_t room_for(uint64_t offset, uint64_t length) {
    return offset % PAGE_UNIT + length;
}

/* Whether a request waits for memory: not at all, or as long as it may go on. */
enum memory_patience { MEMORY_NOW, MEMORY_WAIT };

/*
 * Get memory of at least size bytes. With MEMORY_WAIT, wait until the quotas of the lane, its ticket and its device
 * allow it, at most for the lane's timeout. A task that has memory must not wait for more. -EAGAIN: there is none now
 * (MEMORY_NOW); -ENOMEM: there was none in time; -EOVERFLOW: size is larger than any piece can be; -ECANCELED: the
 * request ends.
 */
int memory_get(struct iou_lane *lane, size_t size, enum memory_patience patience, struct memory **memory);
void memory_put(struct iou_lane *lane, struct memory *memory);

/*
 * Take the memory of a decoder (zstd/windows.c), and wait for it for LANE_WINDOW_MS. It is apart: a task that has it
 * may wait for pieces. -ENOBUFS: there was none in time; -ECANCELED.
 */
int memory_get_window(struct iou_lane *lane, iou_zstd *decoder);

/* End the waits of requests whose lane has ended them. */
void memory_wake(struct iou_lanes *lanes);

/* ---- for memory_wait.c ------------------------------------------------------------------------------------------ */

/* A request for memory, which may wait. */
struct claimant {
    struct waiter waiter;
    struct iou_lane *lane;
    size_t size;
    enum memory_patience patience;
    struct memory *memory;
    int error; /* 0; -ENOMEM: the system has no memory; -ECANCELED: the request ends */
};

/* Take the memory. -EAGAIN: there is none now; with MEMORY_WAIT, it is in the queue. Errors as memory_get(). */
int memory_ask(struct claimant *claimant);

/* End the wait with error, unless the claimant was served meanwhile and is about to be woken. */
void memory_give_up(struct claimant *claimant, int error);

#endif
