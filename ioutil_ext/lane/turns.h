/* SPDX-License-Identifier: Apache-2.0 */

/* The threads of a lane, and whose turn it is (turns.c). */

#ifndef IOUTIL_LANE_TURNS_H
#define IOUTIL_LANE_TURNS_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/lane.h"
#include "base/link.h"
#include "engine/external_threads.h"

struct lane_thread;

/* What is different between the protocols. */
struct lane_kind {
    const char *thread_name;
    /* A request that has begun goes on when the ticket expires, and when no more are wanted. */
    bool finishes;
    /* Read requests and do them until another thread leads, or there are no more; false: the latter. */
    bool (*lead)(struct lane_thread *thread);
    /* No thread is left: give back what the kind has. */
    void (*end)(struct iou_lane *lane);
};

struct lane_thread {
    struct link link; /* in turns.threads, or in turns.spare */
    struct link idle; /* in turns.idle */
    struct iou_lane *lane;
    struct external_thread external;
    sem_t wake;
    atomic_uint_fast64_t storage_since; /* ns; 0: storage owes nothing */
};

/* Its lock is taken before those of the engine, of counts, of lanes and of claims. */
struct lane_turns {
    pthread_mutex_t lock; /* of all below */
    struct link threads, idle;
    struct link spare; /* what threads leave behind: one may still be woken that has gone */
    uint32_t count;    /* of threads */
    struct lane_thread *leader;
    struct lane_thread *_Atomic watcher;
    atomic_bool watcher_asleep;
    atomic_uint_fast64_t number; /* of turns; odd: the leader does a request itself */
    bool ended;
};

/* Start the first thread, which leads. -EAGAIN: none can be had. */
int turn_first(struct iou_lane *lane);

/* Make another thread the leader. False: there is none, and none can be had. */
bool turn_hand_over(struct lane_thread *thread);

/* The leader does something itself that may turn out to sleep. Returns, at the end, whether it still leads. */
void turn_begin(struct lane_thread *thread);
bool turn_end(struct lane_thread *thread);

/* See to it that somebody watches the leader. */
void turn_ensure_watcher(struct iou_lane *lane);

/* No thread is left. */
void turns_free(struct iou_lane *lane);

#endif
