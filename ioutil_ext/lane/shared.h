/* SPDX-License-Identifier: Apache-2.0 */

/* The state that all lanes share: memory, tasks, places, records. */

#ifndef IOUTIL_LANE_SHARED_H
#define IOUTIL_LANE_SHARED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/lane.h"
#include "base/fork.h"
#include "base/link.h"

/* What one ticket has of memory and tasks, and its requests that wait for memory. */
struct ticket_quota {
    struct link link;           /* in lanes->quotas */
    struct link turn;           /* in lanes->waiting, while a request waits */
    const iou_lease *ticket;    /* identifies the ticket */
    uint64_t used;              /* bytes of pieces */
    atomic_uint_fast32_t tasks; /* without the first task of each lane */
    uint32_t lanes;
    struct link waiters; /* in order of arrival */
};

struct iou_lanes {
    struct iou_engine *engine;
    struct records *records;
    uint32_t born; /* fork generation; a lane may outlive the engine */
    pthread_mutex_t lock;
    struct device_slabs *devices;
    uint64_t limit, used; /* of slabs */
    uint64_t long_limit;
    bool long_taken;
    struct link kept; /* unused slabs; the one used last comes first, because it is in the caches */
    uint64_t kept_size;
    struct link quotas;
    struct link waiting;         /* quotas with requests that wait for memory, in the order of turns; memory.c */
    struct link members;         /* lanes */
    uint32_t count;              /* of members */
    atomic_uint_fast32_t wanted; /* how many lanes have to give their places back; iou_lanes_recall() */
    atomic_uint_fast32_t tasks;
};

/* Whether this process is a forked child of the one that made them. */
static inline bool lanes_are_foreign(const struct iou_lanes *lanes) {
    return lanes->born != fork_generation();
}

#endif
