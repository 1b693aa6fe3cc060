/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The tasks of a lane. One task, the leader, reads a request. Before it does the request, it makes another task the
 * leader. So the lane takes all requests that have arrived, and begins them, before it waits: their I/O goes to storage
 * in one batch, and their answers to the socket in one call (socket.c). Threads share nothing of a lane except the
 * state that its owner reads.
 */

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/lane.h"

/* Most tasks of a lane, so most requests at a time; others wait in the socket. nbdcopy sends 64, qemu 16. */
#define MAX_TASKS LOOP_FIBERS

/* An idle task ends after this time, because its stack takes 8 to 16 KiB. */
#define IDLE_NS UINT64_C(2000000000)

static void task_main(struct fiber *fiber);

/* ---- making and ending tasks ------------------------------------------------------------------------------------ */

/* Each lane may have one task. */
static bool may_have_task(const struct iou_lane *lane) {
    return lane->tasks.count == 0 || (lane->tasks.count < MAX_TASKS && pool_may_have_task(&lane->memory));
}

/* Count a new task for the lane. For all lanes and for the ticket, only further tasks of a lane count, not its first
   one. */
static void count_task(struct iou_lane *lane) {
    if (lane->tasks.count++)
        pool_add_task(&lane->memory);
}

static void uncount_task(struct iou_lane *lane) {
    if (--lane->tasks.count)
        pool_remove_task(&lane->memory);
}

/* Get the structure of a new task. The lock is held. NULL: no memory. */
static struct task *new_task(struct iou_lane *lane) {
    struct task *task = NULL;
    if (!link_empty(&lane->tasks.spare)) {
        task = container_of(link_take(&lane->tasks.spare), struct task, link);
    } else if ((task = calloc(1, sizeof(*task)))) {
        task->lane = lane;
        work_init(&task->own);
        task->work = lane->kind->work(task);
    }
    return task;
}

/* Start a task. NULL: the lane may not have another one, or there is no memory. */
static struct task *add_task(struct iou_lane *lane) {
    if (!may_have_task(lane))
        return NULL;
    pthread_mutex_lock(&lane->tasks.lock);
    struct task *task = new_task(lane);
    bool starts = task && loop_start(&lane->tasks.loop, &task->fiber, task_main) == 0;
    if (starts)
        task->fiber.data = task->work;
    if (task)
        link_append(starts ? &lane->tasks.all : &lane->tasks.spare, &task->link);
    pthread_mutex_unlock(&lane->tasks.lock);
    if (!starts)
        return NULL;
    count_task(lane);
    return task;
}

/* The last task records the request that all tasks share. */
static void end_task(struct task *task) {
    struct iou_lane *lane = task->lane;
    uncount_task(lane);
    if (lane->tasks.count == 0 || task->work == &task->own)
        work_cut(lane, task->work);
    pthread_mutex_lock(&lane->tasks.lock);
    link_remove(&task->link);
    link_append(&lane->tasks.spare, &task->link);
    pthread_mutex_unlock(&lane->tasks.lock);
}

/* ---- the leader ------------------------------------------------------------------------------------------------- */

/* Take the task that became idle last, so that the others can end, and wake it. */
static struct task *take_idle(struct iou_lane *lane) {
    struct task *task = container_of(lane->tasks.idle.prev, struct task, idle.link);
    link_remove(&task->idle.link);
    waiter_wake(&task->idle);
    return task;
}

bool task_hand_over(struct task *task) {
    struct iou_lane *lane = task->lane;
    struct task *next = link_empty(&lane->tasks.idle) ? add_task(lane) : take_idle(lane);
    if (next)
        lane->tasks.leader = next;
    return next;
}

/* Sleep until this task leads. False: it ends, because it was not needed for a while, or because the lane ends. */
static bool task_rest(struct task *task) {
    struct iou_lane *lane = task->lane;
    if (lane->state.leaving)
        return false;
    waiter_join(&task->idle, &lane->tasks.idle);
    if (!waiter_sleep(&task->idle, now_ns() + IDLE_NS)) {
        link_remove(&task->idle.link);
        waiter_end(&task->idle);
    }
    return lane->tasks.leader == task && !lane->state.leaving;
}

static void task_main(struct fiber *fiber) {
    struct task *task = container_of(fiber, struct task, fiber);
    struct iou_lane *lane = task->lane;
    while (lane->tasks.leader == task || task_rest(task)) {
        if (!lane->kind->lead(task) || lane->state.leaving) { /* no task leads any more */
            lane->state.leaving = true;
            loop_interrupt(&lane->tasks.loop);
            break;
        }
    }
    end_task(task);
}

/* ---- waiting for each other ------------------------------------------------------------------------------------- */

void lane_await(struct iou_lane *lane, uint64_t until) {
    struct waiter waiter;
    waiter_join(&waiter, &lane->tasks.changed);
    if (!waiter_sleep(&waiter, until)) {
        link_remove(&waiter.link);
        waiter_end(&waiter);
    }
}

void lane_changed(struct iou_lane *lane) {
    struct link served;
    waiters_serve(&lane->tasks.changed, &served);
    waiters_wake(&served);
}

/* ---- the lane --------------------------------------------------------------------------------------------------- */

void tasks_init(struct iou_lane *lane) {
    pthread_mutex_init(&lane->tasks.lock, NULL);
    link_init(&lane->tasks.all);
    link_init(&lane->tasks.idle);
    link_init(&lane->tasks.spare);
    link_init(&lane->tasks.changed);
    lane->tasks.loop.event_fd = -1;
}

int tasks_begin(struct iou_lane *lane) {
    lane->tasks.leader = add_task(lane);
    return lane->tasks.leader ? 0 : -ENOMEM;
}

void tasks_interrupted(struct iou_lane *lane) {
    while (lane->state.leaving && !link_empty(&lane->tasks.idle))
        take_idle(lane);
    lane_changed(lane);
}

static void free_tasks(struct link *tasks) {
    while (!link_empty(tasks)) {
        struct task *task = container_of(link_take(tasks), struct task, link);
        work_destroy(&task->own);
        free(task);
    }
}

void tasks_free(struct iou_lane *lane) {
    free_tasks(&lane->tasks.all); /* there is one if its thread could not be started */
    free_tasks(&lane->tasks.spare);
    if (lane->tasks.loop.event_fd != -1)
        loop_destroy(&lane->tasks.loop);
    pthread_mutex_destroy(&lane->tasks.lock);
}
