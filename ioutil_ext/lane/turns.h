/* SPDX-License-Identifier: Apache-2.0 */

/* The threads of a lane, and which of them leads (turns.c). */

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
#include "lane/work.h"

struct lane_thread;

/* A kind of lane: what differs between the protocols. */
struct lane_kind {
    const char *thread_name;
    /* A request that has begun goes on after the ticket has expired, and after iou_lane_refuse(). */
    bool finishes;
    /* Read requests and do them. True: another thread leads now. False: there are no more requests. */
    bool (*lead)(struct lane_thread *thread);
    /* Return the request that a thread works for: its own one, or one of all threads. */
    struct lane_work *(*work)(struct lane_thread *thread);
    /* Free the state of the kind. The lane has no threads any more. */
    void (*end)(struct iou_lane *lane);
};

struct lane_thread {
    struct link link; /* in turns.threads, or in turns.spare */
    struct link idle; /* in turns.idle */
    struct iou_lane *lane;
    struct external_thread external;
    sem_t wake;
    struct lane_work own, *work;        /* the request that it works for: its own, or one of all threads */
    atomic_uint_fast64_t storage_since; /* ns, start of its operation in storage; 0: it has none there */
};

/* The lock is taken before those of the engine, of counts, of lanes and of claims. */
struct lane_turns {
    pthread_mutex_t lock; /* guards all below */
    struct link threads, idle;
    struct link spare; /* structures of threads that have ended: another thread may still post their semaphore */
    uint32_t count;    /* of threads */
    struct lane_thread *leader;
    struct lane_thread *_Atomic watcher;
    atomic_bool watcher_asleep;
    atomic_uint_fast64_t number; /* of turns; odd: the leader does a request itself */
    bool ended;
};

/* Start the first thread, which leads. -EAGAIN: no thread can be started. */
int turn_first(struct iou_lane *lane);

/* Let no thread lead any more. Called with the lock. */
void turns_leave(struct iou_lane *lane);

/* Make another thread the leader. False: none is idle, and none can be started. */
bool turn_hand_over(struct lane_thread *thread);

/* The leader begins and ends a turn: a request that it does itself, and that may sleep. turn_end() returns whether it
   still leads. */
void turn_begin(struct lane_thread *thread);
bool turn_end(struct lane_thread *thread);

/* Make sure that an idle thread watches the leader. */
void turn_ensure_watcher(struct iou_lane *lane);

/* Free the structures of threads. The lane has no threads any more. */
void turns_free(struct iou_lane *lane);

#endif
