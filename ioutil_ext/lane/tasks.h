/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The tasks of a lane (tasks.c). A lane has one thread, which runs a loop. Each task is a fiber of it that reads a
 * request, lets another task read the next one, and does its own.
 */

#ifndef IOUTIL_LANE_TASKS_H
#define IOUTIL_LANE_TASKS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/lane.h"
#include "base/link.h"
#include "base/loop.h"
#include "base/waiter.h"
#include "lane/work.h"

struct task;

/* A kind of lane: what differs between the protocols. */
struct lane_kind {
    const char *thread_name;
    /* A request that has begun goes on after the ticket has expired, and after iou_lane_refuse(). */
    bool finishes;
    /* Read requests and do them. True: another task leads now. False: there are no more requests. */
    bool (*lead)(struct task *task);
    /* Return the request that a task works for: its own one, or one of all tasks. */
    struct lane_work *(*work)(struct task *task);
    /* Free the state of the kind. The lane has no tasks any more. */
    void (*end)(struct iou_lane *lane);
};

struct task {
    struct fiber fiber;
    struct link link;   /* in tasks.all, or in tasks.spare */
    struct waiter idle; /* in tasks.idle */
    struct iou_lane *lane;
    struct lane_work own, *work;        /* the request that it works for (fiber.data): its own, or one of all tasks */
    atomic_uint_fast64_t storage_since; /* ns, start of its operation in storage; 0: it has none there */
};

struct lane_tasks {
    struct loop loop;
    struct link idle;    /* the task that became idle last is the last */
    struct link changed; /* fibers in lane_await() */
    struct task *leader; /* it reads requests */
    uint32_t count;

    pthread_mutex_t
        lock; /* for the owner; guards all below. Taken before those of the engine, of counts, of the pool */
    struct link all;
    struct link spare; /* tasks that have ended */
    bool over;         /* the thread gives up the socket and the image: others do not use them any more */
    bool ended;        /* the lane may be freed */
};

void tasks_init(struct iou_lane *lane);

/* Start the first task, which leads, in a loop that was made. -ENOMEM */
int tasks_begin(struct iou_lane *lane);

/* Let idle tasks end if the lane does, and those in lane_await() look again. After loop_interrupt(). */
void tasks_interrupted(struct iou_lane *lane);

/* Free the tasks and the loop, if it was made. The lane has ended, or was never started. */
void tasks_free(struct iou_lane *lane);

/* Let no task lead any more. Any thread. */
void tasks_leave(struct iou_lane *lane);

/* Make another task the leader, which goes on when this one sleeps. False: there is none. */
bool task_hand_over(struct task *task);

/* Sleep until lane_changed(), until an event that concerns all tasks, or until then. */
void lane_await(struct iou_lane *lane, uint64_t until);

/* Let the tasks in lane_await() look again. The lane's thread. */
void lane_changed(struct iou_lane *lane);

#endif
