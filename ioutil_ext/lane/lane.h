/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One connection that C serves, of any protocol (lane.c), and its parts: its state, and the end of its connection
 * (state.c); where the time of its requests goes (work.c); its tasks (tasks.c); its counters and reports (counts.c).
 */

#ifndef IOUTIL_LANE_LANE_H
#define IOUTIL_LANE_LANE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/lane.h"
#include "base/link.h"
#include "base/loop.h"
#include "base/waiter.h"
#include "image/handle.h"
#include "image/operation.h"
#include "lane/lanes.h"
#include "lane/socket.h"
#include "quota/pool.h"

/* ---- state.c ---------------------------------------------------------------------------------------------------- */

struct lane_state {
    atomic_bool refusing; /* no more requests are begun */
    atomic_bool leaving;  /* no more requests are read */
    atomic_bool broken;   /* no more bytes can be sent */
    atomic_bool rests;    /* no request has arrived: the lane may give its place to another connection */
    atomic_bool active;   /* a request runs, also while none of its operations is in storage */
    atomic_int error;
    atomic_uint_fast32_t running;  /* requests that have begun and were not answered */
    atomic_uint_fast64_t requests; /* requests that have begun */
};

/* Whether running requests have to end: the transfer was cancelled, or the connection broke. */
bool lane_canceled(const struct iou_lane *lane);

/* Whether no request may begin: the ticket has expired or was cancelled, the server stops, or the connection broke. */
bool lane_refuses(const struct iou_lane *lane);

/* Renew the ticket, because a request has ended. */
void lane_renew(struct iou_lane *lane);

/* Whether this lane has to give its place to a connection that waits. Takes one from iou_lanes_recall()'s count. */
bool lane_gives_place(struct iou_lane *lane);

/* Whether a request that has begun has to end: of a kind that does not finish requests, also when none may begin. */
bool lane_cuts(const struct iou_lane *lane);

/* Break the connection: its requests end at their next step, and nothing more is sent. Keeps the first error. */
void lane_break(struct iou_lane *lane, int error);

/* Wake all tasks that wait, so that they check the lane's state. */
void lane_wake(struct iou_lane *lane);

/* Break the connection if its peer is gone. */
void lane_look(struct iou_lane *lane);

/* Do the same, unless it was done within CHECK_NS. For the leader. */
void lane_check(struct iou_lane *lane);

/* ---- work.c ----------------------------------------------------------------------------------------------------- */

struct lane_work {
    atomic_uint_fast64_t began, offset, length; /* began: ns; 0: none runs */
    atomic_uint_fast32_t kind, flags;           /* as in iou_record */
    atomic_uint_fast32_t waiting[IOU_WAITS];    /* tasks that wait now, by iou_wait */
    pthread_mutex_t lock;                       /* a leaf; guards all below */
    uint64_t waited[IOU_WAITS], waited_until;
};

void work_init(struct lane_work *work);
void work_destroy(struct lane_work *work);

/* A request begins, whose head arrived at `began`. what: its kind, flags, offset and length. */
void work_begin(struct lane_work *work, uint64_t began, const iou_record *what);

/* It ends: record it, if requests that took so long are recorded. result: as what, with the result. */
void work_record(struct iou_lane *lane, struct lane_work *work, iou_record result);

/* If one runs, it ends with its connection. */
void work_cut(struct iou_lane *lane, struct lane_work *work);

/* Describe the request, with its waits so far. False: none runs. */
bool work_look(struct lane_work *work, iou_record *record);

/* Begin and end a wait of the calling task. work_wait() returns the time, for work_go_on(). */
uint64_t work_wait(iou_wait kind);
void work_go_on(iou_wait kind, uint64_t since);

/* ---- tasks.c ---------------------------------------------------------------------------------------------------- */

/*
 * The tasks of a lane (tasks.c). A lane has one thread, which runs a loop. Each task is a fiber of it that reads a
 * request, lets another task read the next one, and does its own.
 */

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

    pthread_mutex_t lock; /* for the owner; guards all below. Before those of the engine, of counts, of the pool */
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

/* Make another task the leader, which goes on when this one sleeps. False: there is none. */
bool task_hand_over(struct task *task);

/* Sleep until lane_changed(), until an event that concerns all tasks, or until then. */
void lane_await(struct iou_lane *lane, uint64_t until);

/* Let the tasks in lane_await() look again. The lane's thread. */
void lane_changed(struct iou_lane *lane);

/* ---- counts.c --------------------------------------------------------------------------------------------------- */

struct lane_counts {
    int event_fd;
    atomic_uint_fast64_t zeroed[IOU_METHODS], read, written, failed;
    pthread_mutex_t lock; /* guards all below; a leaf */
    iou_lane_report reports[IOU_LANE_REPORTS];
    uint32_t reports_count;
    uint64_t reports_lost;
    iou_range *ranges;
    uint32_t ranges_count, ranges_size;
};

void counts_free(struct iou_lane *lane);

/* Add a range of bytes that were transferred. Waits for the owner if there are too many ranges. */
void counts_add(struct iou_lane *lane, uint64_t start, uint64_t end);

/* Add a report of an operation if it has failed (error), was slow, or has given up a method. */
void counts_report(struct iou_lane *lane, const struct op *op, int error);

/* Make the eventfd readable, so that the owner fetches counters and reports. */
void lane_notify(struct iou_lane *lane);

/* ---- the lane --------------------------------------------------------------------------------------------------- */

struct iou_lane {
    struct iou_lanes *lanes;
    struct iou_engine *engine;
    iou_handle *handle; /* holds a reference */
    iou_control *control;
    iou_lease *lease;
    iou_bucket *bucket; /* NULL: there is no limit on the rate */
    const struct lane_kind *kind;
    void *own;       /* the state of the kind */
    uint64_t number; /* of the lane, in records */
    uint64_t size;
    uint32_t flags;
    int timeout_ms;
    struct memory_user memory;
    struct link member; /* in lanes->members */
    struct lane_state state;
    struct lane_socket socket;
    struct lane_staging staging; /* for the leader, which reads from the socket */
    struct lane_tasks tasks;
    struct lane_counts counts;
};

/*
 * Start a lane. own: the state of the kind, which kind->end() frees; after a failure the caller still owns it. Returns
 * as iou_nbd_start() does.
 */
int lane_start(iou_lanes *lanes, iou_handle *handle, const iou_lane_options *options, const struct lane_kind *kind,
               void *own, iou_lane **result);

#endif
