/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The threads of a lane take turns: one, the leader, reads a request from the socket. If storage is likely to make it
 * sleep, it makes another one the leader before it does the request and answers it; there is one more thread then when
 * none is idle. If it is not, it goes on as the leader afterwards, with everything in the caches and nobody woken.
 * That is a guess. So while there are such turns an idle thread, the watcher, looks from time to time whether the
 * leader is still at the same one, and takes the lead then.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "base/thread.h"
#include "engine/external_threads.h"
#include "engine/workers.h"
#include "lane/lane.h"

/* Requests of one lane that are done at a time; the others wait in the socket. nbdcopy sends 64, qemu 16. */
#define MAX_THREADS 64u

/* Of all lanes, besides their first ones: no lane gets another one past this, and no ticket past its own limit, nor
   when it has twice what is left, as of memory. A lane that gets none does its requests one by one. */
#define MAX_ALL_THREADS 512u
#define MAX_TICKET_THREADS 128u

#define WATCH_MS 20u
#define IDLE_MS 2000u

static void *thread_main(void *argument);

/* ---- threads; the lane's lock is held --------------------------------------------------------------------------- */

/* What a thread is known by. One that is used again may have been woken for the thread before: it looks why. */
static struct lane_thread *new_thread(struct iou_lane *lane) {
    struct lane_thread *thread;
    if (!link_empty(&lane->turns.spare)) {
        thread = container_of(lane->turns.spare.next, struct lane_thread, link);
        link_remove(&thread->link);
        return thread;
    }
    thread = calloc(1, sizeof(*thread));
    if (!thread)
        return NULL;
    thread->lane = lane;
    link_init(&thread->idle);
    sem_init(&thread->wake, 0, 0);
    return thread;
}

/* Each lane may have one thread. */
static bool may_have_thread(const struct iou_lane *lane) {
    uint64_t left = MAX_ALL_THREADS - min_u64(lane->lanes->threads, MAX_ALL_THREADS);
    return lane->turns.count == 0 ||
           (lane->turns.count < MAX_THREADS && lane->memory.share->threads < min_u64(MAX_TICKET_THREADS, 2 * left));
}

/* Count one that was added, or has gone: of each lane all but one. */
static void count_thread(struct iou_lane *lane) {
    if (lane->turns.count++) {
        lane->lanes->threads++;
        lane->memory.share->threads++;
    }
}

static void uncount_thread(struct iou_lane *lane) {
    if (--lane->turns.count) {
        lane->lanes->threads--;
        lane->memory.share->threads--;
    }
}

/* NULL: none can be had. */
static struct lane_thread *add_thread(struct iou_lane *lane) {
    if (!may_have_thread(lane))
        return NULL;
    struct lane_thread *thread = new_thread(lane);
    if (!thread)
        return NULL;
    link_append(&lane->turns.threads, &thread->link);
    count_thread(lane);
    if (external_thread_enter(lane->engine, &thread->external) == 0) {
        if (thread_start(NULL, thread_main, thread) == 0)
            return thread;
        external_thread_leave(lane->engine, &thread->external);
    }
    uncount_thread(lane);
    link_remove(&thread->link);
    link_append(&lane->turns.spare, &thread->link);
    return NULL;
}

/* The one that became idle last, so that the others can end; not the watcher unless there is no other. */
static struct lane_thread *pick_idle(struct iou_lane *lane) {
    for (struct link *node = lane->turns.idle.prev; node != &lane->turns.idle; node = node->prev) {
        struct lane_thread *thread = container_of(node, struct lane_thread, idle);
        if (thread != lane->turns.watcher || node->prev == &lane->turns.idle)
            return thread;
    }
    return NULL;
}

static void wake_all(struct iou_lane *lane) {
    for (struct link *node = lane->turns.idle.next; node != &lane->turns.idle; node = node->next)
        sem_post(&container_of(node, struct lane_thread, idle)->wake);
}

static bool sleep_ms(struct lane_thread *thread, uint32_t ms) {
    struct timespec deadline;
    deadline_in(CLOCK_MONOTONIC, &deadline, ms);
    while (sem_clockwait(&thread->wake, CLOCK_MONOTONIC, &deadline) == -1)
        if (errno == ETIMEDOUT)
            return false;
    return true;
}

/* The watcher's look. Returns for how many ms it may sleep. */
static uint32_t look(struct lane_thread *thread, uint64_t *seen) {
    struct iou_lane *lane = thread->lane;
    uint64_t turns = lane->turns.number;
    if (turns % 2 && turns == *seen) {
        lane->turns.leader = thread; /* the leader has been at one turn for long */
        return 0;
    }
    if (turns != *seen) {
        *seen = turns;
        return WATCH_MS;
    }
    lane->turns.watcher_asleep = true;
    if (lane->turns.number == turns) /* the leader looks at watcher_asleep after it has changed turns */
        return IDLE_MS;
    lane->turns.watcher_asleep = false;
    return WATCH_MS;
}

/* Wait until this thread leads. False: it ends. */
static bool rest(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    uint64_t seen = 0;
    bool ends = false;
    link_append(&lane->turns.idle, &thread->idle);
    while (lane->turns.leader != thread && !lane->state.leaving && !ends) {
        if (!lane->turns.watcher)
            lane->turns.watcher = thread;
        uint32_t ms = lane->turns.watcher == thread ? look(thread, &seen) : IDLE_MS;
        if (ms == 0)
            break;
        pthread_mutex_unlock(&lane->turns.lock);
        bool woken = sleep_ms(thread, ms);
        pthread_mutex_lock(&lane->turns.lock);
        ends = !woken && ms == IDLE_MS;
        if (lane->turns.watcher == thread) {
            lane->turns.watcher_asleep = false;
            if (ends) {
                lane->turns.watcher = NULL; /* the leader looks for a watcher after it has changed turns */
                ends = lane->turns.number == seen;
            }
        }
    }
    link_remove(&thread->idle);
    if (lane->turns.watcher == thread)
        lane->turns.watcher = NULL;
    return lane->turns.leader == thread && !lane->state.leaving;
}

/* ---- turns ------------------------------------------------------------------------------------------------------ */

/* A thread is woken without the lock, which it takes at once. */
bool turn_hand_over(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    pthread_mutex_lock(&lane->turns.lock);
    struct lane_thread *idle = pick_idle(lane), *next = idle ? idle : add_thread(lane);
    if (next)
        lane->turns.leader = next;
    pthread_mutex_unlock(&lane->turns.lock);
    if (idle)
        sem_post(&idle->wake);
    return next;
}

void turn_ensure_watcher(struct iou_lane *lane) {
    if (lane->turns.watcher && !lane->turns.watcher_asleep)
        return;
    pthread_mutex_lock(&lane->turns.lock);
    struct lane_thread *idle = lane->turns.watcher ? lane->turns.watcher : pick_idle(lane);
    lane->turns.watcher = idle ? idle : add_thread(lane); /* without one, requests wait for each other */
    lane->turns.watcher_asleep = false;                   /* it is on its way */
    pthread_mutex_unlock(&lane->turns.lock);
    if (idle)
        sem_post(&idle->wake);
}

void turn_begin(struct lane_thread *thread) {
    thread->lane->turns.number++;
    turn_ensure_watcher(thread->lane);
}

bool turn_end(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    pthread_mutex_lock(&lane->turns.lock);
    bool leads = lane->turns.leader == thread;
    if (leads)
        lane->turns.number++; /* else the new leader has made it even */
    pthread_mutex_unlock(&lane->turns.lock);
    return leads;
}

/* ---- the life of a thread, and of the lane ---------------------------------------------------------------------- */

/* The last one closes the connection. Whoever sees lane->turns.ended may free the lane once it gets the lock. */
static void leave(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    uncount_thread(lane);
    bool last = lane->turns.count == 0;
    if (last) {
        socket_restore(lane);
        close(lane->socket.fd);
        engine_put_handle(lane->engine, lane->handle);
    }
    external_thread_leave(lane->engine, &thread->external); /* the engine may be freed now */
    link_remove(&thread->link);
    link_append(&lane->turns.spare, &thread->link);
    if (last) {
        lane->turns.ended = true;
        lane_notify(lane);
    }
}

static void *thread_main(void *argument) {
    struct lane_thread *thread = argument;
    struct iou_lane *lane = thread->lane;
    pthread_setname_np(pthread_self(), lane->kind->thread_name);
    pthread_mutex_lock(&lane->turns.lock);
    while (lane->turns.leader == thread || rest(thread)) {
        if (lane->turns.number % 2)
            lane->turns.number++; /* of the leader before, who is still at it */
        pthread_mutex_unlock(&lane->turns.lock);
        bool more = lane->kind->lead(thread);
        pthread_mutex_lock(&lane->turns.lock);
        if (!more)
            lane->state.leaving = true;
        if (lane->state.leaving) {
            wake_all(lane);
            break;
        }
    }
    leave(thread);
    pthread_mutex_unlock(&lane->turns.lock);
    return NULL;
}

void turns_free(struct iou_lane *lane) {
    while (!link_empty(&lane->turns.spare)) {
        struct lane_thread *thread = container_of(lane->turns.spare.next, struct lane_thread, link);
        link_remove(&thread->link);
        sem_destroy(&thread->wake);
        free(thread);
    }
}

int turn_first(struct iou_lane *lane) {
    pthread_mutex_lock(&lane->turns.lock);
    struct lane_thread *first = add_thread(lane);
    lane->turns.leader = first;
    pthread_mutex_unlock(&lane->turns.lock);
    return first ? 0 : -EAGAIN;
}
