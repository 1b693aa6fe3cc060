/* SPDX-License-Identifier: Apache-2.0 */

/* The state that all lanes share: memory, places (lanes.c), and the records of requests, for the log (records.c). */

#ifndef IOUTIL_LANE_LANES_H
#define IOUTIL_LANE_LANES_H

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
    pthread_mutex_t lock;        /* guards members, count and changes of wanted. Taken before the locks of loops */
    struct link members;         /* lanes */
    uint32_t count;              /* of members */
    atomic_uint_fast32_t wanted; /* how many lanes have to give their places back; iou_lanes_recall() */
};

/* Return whether this process is a forked child of the one that made the lanes. */
static inline bool lanes_are_foreign(const struct iou_lanes *lanes) {
    return lanes->born != fork_generation();
}

/* Join and leave. In between, the lane has a part in its ticket's quota and in its device's memory. Returns 0 or
   -ENOMEM. */
int lanes_join(struct iou_lane *lane);
void lanes_leave(struct iou_lane *lane);

/* ---- records.c -------------------------------------------------------------------------------------------------- */

/* Make an empty ring of records. Returns NULL without memory. */
struct records *records_new(void);
void records_free(struct records *records);

/* Add a record, without waiting. If there is no room, the record is lost and counted. */
void records_add(struct records *records, const iou_record *record);

/* Return the duration in ns from which on a request is recorded. */
uint64_t records_least(const struct records *records);

#endif
