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

/* Return whether running requests have to end, because the transfer was cancelled or the connection broke. */
bool lane_canceled(const struct iou_lane *lane);

/* Return whether no request may begin, because the ticket has expired or was cancelled, the server stops, or the
   connection broke. */
bool lane_refuses(const struct iou_lane *lane);

/* Renew the ticket, because a request has ended. */
void lane_renew(struct iou_lane *lane);

/* Return whether this lane has to give its place to a connection that waits. If so, this counts down
   iou_lanes_recall(). */
bool lane_gives_place(struct iou_lane *lane);

/* Return whether requests that have begun have to end. If the kind of lane does not finish requests, they also end when
   no request may begin. */
bool lane_cuts(const struct iou_lane *lane);

/* Break the connection: its requests end at their next step, and nothing more is sent. The first error is kept. */
void lane_break(struct iou_lane *lane, int error);

/* Wake all tasks that wait, so that they check the lane's state. */
void lane_wake(struct iou_lane *lane);

/* Break the connection if its peer is gone. */
void lane_look(struct iou_lane *lane);

/* Do as lane_look(), unless that was done within CHECK_NS. For the leader. */
void lane_check(struct iou_lane *lane);

/* ---- work.c ----------------------------------------------------------------------------------------------------- */

struct lane_work {
    atomic_uint_fast64_t began, offset, length; /* began is in ns, or 0 if no request runs */
    atomic_uint_fast32_t kind, flags;           /* as in iou_record */
    atomic_uint_fast32_t waiting[IOU_WAITS];    /* tasks that wait now, by iou_wait */
    pthread_mutex_t lock;                       /* a leaf; guards all below */
    uint64_t waited[IOU_WAITS], waited_until;
};

void work_init(struct lane_work *work);
void work_destroy(struct lane_work *work);

/* Note that a request begins, whose head arrived at `began`. `what` has its kind, flags, offset and length. */
void work_begin(struct lane_work *work, uint64_t began, const iou_record *what);

/* Note that the request ends, and record it if it took at least records_least(). `result` has the same fields as
   `what`, and the result. */
void work_record(struct iou_lane *lane, struct lane_work *work, iou_record result);

/* End the request, if one runs, because its connection ends. */
void work_cut(struct iou_lane *lane, struct lane_work *work);

/* Describe the request, with its waits so far. Returns false if none runs. */
bool work_look(struct lane_work *work, iou_record *record);

/* Begin and end a wait of the calling task. Pass the result of work_wait() to work_go_on(). */
uint64_t work_wait(iou_wait kind);
void work_go_on(iou_wait kind, uint64_t since);

/* ---- tasks.c ---------------------------------------------------------------------------------------------------- */

/*
 * The tasks of a lane (tasks.c). A lane has one thread, which runs a loop. Each task is a fiber of it that reads a
 * request, lets another task read the next one, and does its own.
 */

struct task;

/* A kind of lane: the functions that differ between the protocols. */
struct lane_kind {
    const char *thread_name;
    /* Requests that have begun continue after the ticket has expired, and after iou_lane_refuse(). */
    bool finishes;
    /* Read requests and do them. Return true when another task leads, or false when there are no more requests. */
    bool (*lead)(struct task *task);
    /* Return the request for which a task works: its own one, or one that all tasks share. */
    struct lane_work *(*work)(struct task *task);
    /* Free the state of the kind. The lane then has no tasks any more. */
    void (*end)(struct iou_lane *lane);
};

struct task {
    struct fiber fiber;
    struct link link;   /* in tasks.all, or in tasks.spare */
    struct waiter idle; /* in tasks.idle */
    struct iou_lane *lane;
    struct lane_work own, *work;        /* the request for which it works (fiber.data): its own, or one of all tasks */
    atomic_uint_fast64_t storage_since; /* when its operation in storage has begun, in ns, or 0 without one */
};

struct lane_tasks {
    struct loop loop;
    struct link idle;    /* the task that became idle last is the last */
    struct link changed; /* fibers in lane_await() */
    struct task *leader; /* it reads requests */
    uint32_t count;

    pthread_mutex_t lock; /* guards the members below. Taken before the locks of the engine, counts and pool */
    struct link all;
    struct link spare; /* tasks that have ended */
    bool over;         /* the thread releases socket and image: other threads must not use them any more */
    bool ended;        /* the lane may be freed */
};

void tasks_init(struct iou_lane *lane);

/* Start the first task, which leads. Its loop was made before. Returns 0 or -ENOMEM. */
int tasks_begin(struct iou_lane *lane);

/* Called after loop_interrupt(). Lets idle tasks end if the lane ends, and tasks in lane_await() check again. */
void tasks_interrupted(struct iou_lane *lane);

/* Free the tasks, and the loop if it was made. Call this when the lane has ended, or was not started. */
void tasks_free(struct iou_lane *lane);

/* Make another task the leader, which continues when this one sleeps. Returns false if there is no other task. */
bool task_hand_over(struct task *task);

/* Sleep until lane_changed(), an event that concerns all tasks, or the time `until`. */
void lane_await(struct iou_lane *lane, uint64_t until);

/* Let the tasks in lane_await() check again. Call this in the lane's thread. */
void lane_changed(struct iou_lane *lane);

/* ---- counts.c --------------------------------------------------------------------------------------------------- */

struct lane_counts {
    int event_fd;
    atomic_uint_fast64_t zeroed[IOU_METHODS], read, written, failed;
    pthread_mutex_t lock; /* guards the members below; a leaf */
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
    iou_bucket *bucket; /* or NULL without a rate limit */
    const struct lane_kind *kind;
    void *own;       /* the state of the kind */
    uint64_t number; /* identifies the lane in records */
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

/* Start a lane. `own` is the state of the kind, which kind->end() frees. After a failure the caller still owns it.
   Returns as iou_nbd_start() does. */
int lane_start(iou_lanes *lanes, iou_handle *handle, const iou_lane_options *options, const struct lane_kind *kind,
               void *own, iou_lane **result);

#endif
