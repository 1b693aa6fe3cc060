/* SPDX-License-Identifier: Apache-2.0 */

/* What all lanes share: memory, threads, places, records. */

#ifndef IOUTIL_LANE_SHARED_H
#define IOUTIL_LANE_SHARED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/lane.h"
#include "base/fork.h"
#include "base/link.h"

/* What the connections of one ticket have of memory and threads, and their requests that wait for memory. */
struct share {
    struct link link;             /* in lanes->shares */
    struct link turn;             /* in lanes->waiting, if somebody waits */
    const iou_lease *ticket;      /* whose it is */
    uint64_t lent;                /* bytes of pieces */
    atomic_uint_fast32_t threads; /* besides the first ones of its lanes */
    uint32_t lanes;
    struct link waiters; /* the first one first */
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
    struct link kept; /* slabs that nobody uses; the last one used is first: it is in the caches */
    uint64_t kept_size;
    struct link shares;
    struct link waiting;         /* shares of which requests wait for memory, that whose turn is next first; memory.c */
    struct link members;         /* lanes */
    uint32_t count;              /* of them */
    atomic_uint_fast32_t wanted; /* places of lanes that are given back */
    atomic_uint_fast32_t threads;
};

/* Whether this is a forked child of the process that made them. */
static inline bool lanes_are_foreign(const struct iou_lanes *lanes) {
    return lanes->born != fork_generation();
}

#endif
