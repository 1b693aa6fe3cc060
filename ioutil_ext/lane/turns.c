/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The threads of a lane take turns. One of them, the leader, reads a request from the socket. If storage is likely to
 * make it sleep, it makes another thread the leader before it does and answers the request; a thread is started if none
 * is idle. Otherwise it does the request itself and stays the leader, with warm caches and without a wake-up. As this
 * is a guess, an idle thread, the watcher, checks such turns from time to time. If the leader is still at the same
 * turn, the watcher becomes the leader.
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

/* Most threads of a lane, so most requests at a time; others wait in the socket. nbdcopy sends 64, qemu 16. */
#define MAX_THREADS 64u

/* Most threads of all lanes, and of the lanes of one ticket, without the first thread of each lane. A ticket may also
   have at most twice as many as are left, which is the rule for memory. A lane without a second thread does its
   requests one by one. */
#define MAX_ALL_THREADS 512u
#define MAX_TICKET_THREADS 128u

#define WATCH_MS 20u
#define IDLE_MS 2000u

static void *thread_main(void *argument);

/* ---- threads; the lane's lock is held --------------------------------------------------------------------------- */

/* Get the structure of a new thread. A spare one may still get wake-ups of its earlier thread, which waits allow. */
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
    work_init(&thread->own);
    thread->work = lane->kind->work(thread);
    return thread;
}

/* Each lane may have one thread. */
static bool may_have_thread(const struct iou_lane *lane) {
    uint64_t left = MAX_ALL_THREADS - min_u64(lane->lanes->threads, MAX_ALL_THREADS);
    return lane->turns.count == 0 ||
           (lane->turns.count < MAX_THREADS && lane->memory.quota->threads < min_u64(MAX_TICKET_THREADS, 2 * left));
}

/* Count the threads of a lane, and for all lanes and the ticket all but the first one of each lane. */
static void count_thread(struct iou_lane *lane) {
    if (lane->turns.count++) {
        lane->lanes->threads++;
        lane->memory.quota->threads++;
    }
}

static void uncount_thread(struct iou_lane *lane) {
    if (--lane->turns.count) {
        lane->lanes->threads--;
        lane->memory.quota->threads--;
    }
}

/* Start a thread. NULL: none can be started. */
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

/* Return the thread that became idle last, so that the others can end; the watcher only if there is no other. */
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

/* Check the leader, as the watcher. Returns for how many ms the watcher may sleep; 0: it leads now. */
static uint32_t look(struct lane_thread *thread, uint64_t *seen) {
    struct iou_lane *lane = thread->lane;
    uint64_t turns = lane->turns.number;
    if (turns % 2 && turns == *seen) {
        lane->turns.leader = thread; /* the leader is still at the turn of the last check */
        return 0;
    }
    if (turns != *seen) {
        *seen = turns;
        return WATCH_MS;
    }
    lane->turns.watcher_asleep = true;
    if (lane->turns.number == turns) /* the leader reads watcher_asleep after it has changed number */
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
                lane->turns.watcher = NULL; /* the leader reads watcher after it has changed number */
                ends = lane->turns.number == seen;
            }
        }
    }
    link_remove(&thread->idle);
    if (lane->turns.watcher == thread)
        lane->turns.watcher = NULL;
    return lane->turns.leader == thread && !lane->state.leaving;
}

void turns_leave(struct iou_lane *lane) {
    lane->state.leaving = true;
    wake_all(lane);
}

/* ---- turns ------------------------------------------------------------------------------------------------------ */

/* The thread is woken without the lock, because it takes the lock at once. */
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
    lane->turns.watcher = idle ? idle : add_thread(lane); /* without a watcher, requests wait for each other */
    lane->turns.watcher_asleep = false;                   /* the wake-up follows */
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
        lane->turns.number++; /* otherwise the new leader has made it even */
    pthread_mutex_unlock(&lane->turns.lock);
    return leads;
}

/* ---- the life of a thread, and of the lane ---------------------------------------------------------------------- */

/* End a thread. The last one closes the connection. The owner may free the lane as soon as it gets the lock and sees
   turns.ended. */
static void leave(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    uncount_thread(lane);
    bool last = lane->turns.count == 0;
    if (last || thread->work == &thread->own)
        work_cut(lane, thread->work);
    if (last) {
        if (lane->state.active) /* a request that ends with its connection */
            lane_renew(lane);
        lane->state.active = false;
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
    work_for(thread->work);
    pthread_mutex_lock(&lane->turns.lock);
    while (lane->turns.leader == thread || rest(thread)) {
        if (lane->turns.number % 2)
            lane->turns.number++; /* the earlier leader is still at its turn */
        pthread_mutex_unlock(&lane->turns.lock);
        bool more = lane->kind->lead(thread);
        pthread_mutex_lock(&lane->turns.lock);
        if (!more || lane->state.leaving) {
            turns_leave(lane);
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
        work_destroy(&thread->own);
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
