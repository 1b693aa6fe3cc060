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
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "lane.h"

/* Requests of one lane that are done at a time; the others wait in the socket. nbdcopy sends 64, qemu 16. */
#define MAX_THREADS 64u

/* Of all lanes: no lane gets another one past this, and no ticket has more than twice what is left, as of memory. */
#define MAX_ALL_THREADS 512u

/* No recursion, and on the stack at most the heads of one reply. Python's callbacks (tests) need more. */
#define STACK_SIZE (256 * KIB)

#define WATCH_MS 20u
#define IDLE_MS 2000u

static void *thread_main(void *argument);

/* ---- threads; the lane's lock is held --------------------------------------------------------------------------- */

static int create(struct lane_thread *thread) {
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_t id;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads that know what to do with them */
    int error = pthread_create(&id, &attributes, thread_main, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* What a thread is known by. One that is used again may have been woken for the thread before: it looks why. */
static struct lane_thread *new_thread(struct iou_lane *lane) {
    struct lane_thread *thread;
    if (!link_empty(&lane->spare)) {
        thread = container_of(lane->spare.next, struct lane_thread, link);
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
    return lane->threads_count == 0 || (lane->threads_count < MAX_THREADS && lane->share->threads < 2 * left);
}

/* NULL: none can be had. */
static struct lane_thread *add_thread(struct iou_lane *lane) {
    if (!may_have_thread(lane))
        return NULL;
    struct lane_thread *thread = new_thread(lane);
    if (!thread)
        return NULL;
    link_append(&lane->threads, &thread->link);
    lane->threads_count++;
    lane->lanes->threads++;
    lane->share->threads++;
    if (guest_enter(lane->engine, &thread->guest) == 0) {
        if (create(thread) == 0)
            return thread;
        guest_leave(lane->engine, &thread->guest);
    }
    lane->share->threads--;
    lane->lanes->threads--;
    lane->threads_count--;
    link_remove(&thread->link);
    link_append(&lane->spare, &thread->link);
    return NULL;
}

/* The one that became idle last, so that the others can end; not the watcher unless there is no other. */
static struct lane_thread *pick_idle(struct iou_lane *lane) {
    for (struct link *node = lane->idle.prev; node != &lane->idle; node = node->prev) {
        struct lane_thread *thread = container_of(node, struct lane_thread, idle);
        if (thread != lane->watcher || node->prev == &lane->idle)
            return thread;
    }
    return NULL;
}

static void wake_all(struct iou_lane *lane) {
    for (struct link *node = lane->idle.next; node != &lane->idle; node = node->next)
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
    uint64_t turns = lane->turns;
    if (turns % 2 && turns == *seen) {
        lane->leader = thread; /* the leader has been at one turn for long */
        return 0;
    }
    if (turns != *seen) {
        *seen = turns;
        return WATCH_MS;
    }
    lane->watcher_asleep = true;
    if (lane->turns == turns) /* the leader looks at watcher_asleep after it has changed turns */
        return IDLE_MS;
    lane->watcher_asleep = false;
    return WATCH_MS;
}

/* Wait until this thread leads. False: it ends. */
static bool rest(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    uint64_t seen = 0;
    bool ends = false;
    link_append(&lane->idle, &thread->idle);
    while (lane->leader != thread && !lane->leaving && !ends) {
        if (!lane->watcher)
            lane->watcher = thread;
        uint32_t ms = lane->watcher == thread ? look(thread, &seen) : IDLE_MS;
        if (ms == 0)
            break;
        pthread_mutex_unlock(&lane->lock);
        bool woken = sleep_ms(thread, ms);
        pthread_mutex_lock(&lane->lock);
        ends = !woken && ms == IDLE_MS;
        if (lane->watcher == thread) {
            lane->watcher_asleep = false;
            if (ends) {
                lane->watcher = NULL; /* the leader looks for a watcher after it has changed turns */
                ends = lane->turns == seen;
            }
        }
    }
    link_remove(&thread->idle);
    if (lane->watcher == thread)
        lane->watcher = NULL;
    return lane->leader == thread && !lane->leaving;
}

/* ---- turns ------------------------------------------------------------------------------------------------------ */

/* A thread is woken without the lock, which it takes at once. */
bool turn_hand_over(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    pthread_mutex_lock(&lane->lock);
    struct lane_thread *idle = pick_idle(lane), *next = idle ? idle : add_thread(lane);
    if (next)
        lane->leader = next;
    pthread_mutex_unlock(&lane->lock);
    if (idle)
        sem_post(&idle->wake);
    return next;
}

void turn_ensure_watcher(struct iou_lane *lane) {
    if (lane->watcher && !lane->watcher_asleep)
        return;
    pthread_mutex_lock(&lane->lock);
    struct lane_thread *idle = lane->watcher ? lane->watcher : pick_idle(lane);
    lane->watcher = idle ? idle : add_thread(lane); /* without one, requests wait for each other */
    lane->watcher_asleep = false;                   /* it is on its way */
    pthread_mutex_unlock(&lane->lock);
    if (idle)
        sem_post(&idle->wake);
}

void turn_begin(struct lane_thread *thread) {
    thread->lane->turns++;
    turn_ensure_watcher(thread->lane);
}

bool turn_end(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    pthread_mutex_lock(&lane->lock);
    bool leads = lane->leader == thread;
    if (leads)
        lane->turns++; /* else the new leader has made it even */
    pthread_mutex_unlock(&lane->lock);
    return leads;
}

/* ---- the life of a thread, and of the lane ---------------------------------------------------------------------- */

/* The last one closes the connection. Whoever sees lane->ended may free the lane once it gets the lock. */
static void leave(struct lane_thread *thread) {
    struct iou_lane *lane = thread->lane;
    bool last = --lane->threads_count == 0;
    if (last) {
        socket_restore(lane);
        close(lane->fd);
        handle_put(lane->handle, lane->engine);
    }
    guest_leave(lane->engine, &thread->guest); /* the engine may be freed now */
    link_remove(&thread->link);
    link_append(&lane->spare, &thread->link);
    lane->share->threads--;
    lane->lanes->threads--;
    if (last) {
        lane->ended = true;
        lane_notify(lane);
    }
}

static void *thread_main(void *argument) {
    struct lane_thread *thread = argument;
    struct iou_lane *lane = thread->lane;
    pthread_setname_np(pthread_self(), lane->kind->thread_name);
    pthread_mutex_lock(&lane->lock);
    while (lane->leader == thread || rest(thread)) {
        if (lane->turns % 2)
            lane->turns++; /* of the leader before, who is still at it */
        pthread_mutex_unlock(&lane->lock);
        bool more = lane->kind->lead(thread);
        pthread_mutex_lock(&lane->lock);
        if (!more)
            lane->leaving = true;
        if (lane->leaving) {
            wake_all(lane);
            break;
        }
    }
    leave(thread);
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

void turns_free(struct iou_lane *lane) {
    while (!link_empty(&lane->spare)) {
        struct lane_thread *thread = container_of(lane->spare.next, struct lane_thread, link);
        link_remove(&thread->link);
        sem_destroy(&thread->wake);
        free(thread);
    }
}

int turn_first(struct iou_lane *lane) {
    pthread_mutex_lock(&lane->lock);
    struct lane_thread *first = add_thread(lane);
    lane->leader = first;
    pthread_mutex_unlock(&lane->lock);
    return first ? 0 : -EAGAIN;
}
