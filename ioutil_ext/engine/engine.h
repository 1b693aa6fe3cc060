/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The engine, for its parts. Locks nest in this order: engine->lock, then image->claims.lock; all others are leaves,
 * but for those of a record of durable ranges (durable/durable.h).
 */

#ifndef IOUTIL_ENGINE_ENGINE_H
#define IOUTIL_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/ioutil.h"
#include "base/link.h"
#include "base/thread.h"

/* The lock guards all members that change. */
struct iou_engine {
    pthread_mutex_t lock;
    uint32_t max_threads, quota, idle_ms;
    uint32_t born; /* fork generation */
    struct link devices, ready, parked;
    struct link workers, dead;
    struct link own_thread; /* operations that are in a turn in the thread which has begun them */
    struct link idle;       /* the worker that became idle last comes first, so that the others can end */
    struct link woken;      /* workers from the idle list, to be woken when the lock is released */
    pthread_cond_t worker_ended;
    uint32_t threads, busy, waking;
    uint32_t queued, parked_count, queues;
    uint64_t numbers; /* workers started so far */
    bool stopping;
};

/* Whether this process is a forked child of the one that made the engine. */
static inline bool engine_is_foreign(const struct iou_engine *engine) {
    return engine->born != fork_generation();
}

#endif
