/* SPDX-License-Identifier: Apache-2.0 */

/* The state that all lanes share: memory, places, records. */

#ifndef IOUTIL_LANE_SHARED_H
#define IOUTIL_LANE_SHARED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/lane.h"
#include "base/link.h"
#include "base/thread.h"
#include "quota/pool.h"

struct iou_lanes {
    struct iou_engine *engine;
    struct records *records;
    struct memory_pool pool;
    uint32_t born;               /* fork generation; a lane may outlive the engine */
    pthread_mutex_t lock;        /* guards members and count. Taken before those of loops */
    struct link members;         /* lanes */
    uint32_t count;              /* of members */
    atomic_uint_fast32_t wanted; /* how many lanes have to give their places back; iou_lanes_recall() */
};

/* Whether this process is a forked child of the one that made them. */
static inline bool lanes_are_foreign(const struct iou_lanes *lanes) {
    return lanes->born != fork_generation();
}

#endif
