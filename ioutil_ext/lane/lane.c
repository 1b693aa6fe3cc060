/* SPDX-License-Identifier: Apache-2.0 */

/* A lane: its start, its thread, the functions for its owner, and its end. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/numbers.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "engine/running.h"
#include "lane/lane.h"
#include "lane/lanes.h"

/* ---- the thread ------------------------------------------------------------------------------------------------- */

static struct iou_lane *lane_of(struct loop *loop) {
    return container_of(loop, struct iou_lane, tasks.loop);
}

static void before_sleep(struct loop *loop) {
    lane_flush(lane_of(loop));
}

static void interrupted(struct loop *loop) {
    tasks_interrupted(lane_of(loop));
}

/* The owner may free the lane as soon as it gets the lock and sees tasks.ended. */
static void *lane_main(void *argument) {
    struct iou_lane *lane = argument;
    pthread_setname_np(pthread_self(), lane->kind->thread_name);
    loop_run(&lane->tasks.loop);
    if (lane->state.active) /* a request that ends with its connection */
        lane_renew(lane);
    lane->state.active = false;
    pthread_mutex_lock(&lane->tasks.lock);
    lane->tasks.over = true; /* after close(), another descriptor may have its number */
    pthread_mutex_unlock(&lane->tasks.lock);
    socket_restore(lane);
    close(lane->socket.fd);
    engine_put_handle(lane->engine, lane->handle); /* the engine may be freed now */
    pthread_mutex_lock(&lane->tasks.lock);
    lane->tasks.ended = true;
    lane_notify(lane);
    pthread_mutex_unlock(&lane->tasks.lock);
    return NULL;
}

/* Make the loop, and start the thread with the first task, which leads. -EAGAIN: no thread can be started; -errno. */
static int start_thread(struct iou_lane *lane) {
    int error = loop_init(&lane->tasks.loop);
    if (error)
        return error;
    lane->tasks.loop.before_sleep = before_sleep;
    lane->tasks.loop.interrupted = interrupted;
    if ((error = tasks_begin(lane)))
        return error;
    if (thread_start(NULL, lane_main, lane) == 0)
        return 0;
    fiber_free(&lane->tasks.leader->fiber);
    return -EAGAIN;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

static int check_options(const iou_handle *handle, const iou_lane_options *options) {
    if (!handle || options->rest_length > LANE_STAGING || options->size > INT64_MAX || options->timeout_ms == 0 ||
        options->timeout_ms > IOU_LANE_MAX_TIMEOUT_MS)
        return -EINVAL;
    if (!(options->flags & IOU_LANE_READ_ONLY) && !handle->writable)
        return -EINVAL;
    return 0;
}

/* Free all but the state of its kind. */
static void free_lane(struct iou_lane *lane) {
    lanes_leave(lane);
    tasks_free(lane);
    free(lane->socket.outbox.bytes);
    if (lane->counts.event_fd != -1)
        close(lane->counts.event_fd);
    counts_free(lane);
    pthread_mutex_destroy(&lane->counts.lock);
    free(lane);
}

static struct iou_lane *new_lane(iou_lanes *lanes, const iou_lane_options *options) {
    struct iou_lane *lane = calloc(1, sizeof(*lane));
    if (!lane)
        return NULL;
    lane->lanes = lanes;
    lane->engine = lanes->engine;
    lane->control = options->control;
    lane->lease = options->lease;
    lane->bucket = options->bucket;
    lane->number = options->number;
    lane->size = options->size;
    lane->flags = options->flags;
    lane->timeout_ms = (int)options->timeout_ms;
    lane->socket.fd = options->fd;
    lane->socket.tls = options->tls;
    link_init(&lane->socket.waiters);
    pthread_mutex_init(&lane->counts.lock, NULL);
    lane->counts.event_fd = -1;
    if (options->rest_length)
        memcpy(lane->staging.bytes, options->rest, options->rest_length);
    lane->staging.end = (uint32_t)options->rest_length;
    return lane;
}

static int make_event(struct iou_lane *lane) {
    lane->counts.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return lane->counts.event_fd == -1 ? -errno : 0;
}

static int start_lane(iou_lanes *lanes, iou_handle *handle, const iou_lane_options *options,
                      const struct lane_kind *kind, void *own, iou_lane **result) {
    struct iou_lane *lane = new_lane(lanes, options);
    if (!lane)
        return -ENOMEM;
    lane->handle = handle;
    lane->kind = kind;
    lane->own = own;
    tasks_init(lane);
    int error = lanes_join(lane);
    if (!error)
        error = make_event(lane);
    if (!error) {
        socket_init(lane);
        if ((error = start_thread(lane)))
            socket_restore(lane);
    }
    if (error)
        free_lane(lane);
    else
        *result = lane;
    return error;
}

int lane_start(iou_lanes *lanes, iou_handle *handle, const iou_lane_options *options, const struct lane_kind *kind,
               void *own, iou_lane **result) {
    int error = check_options(handle, options);
    if (!error)
        error = engine_take_handle(lanes->engine, handle, IOU_READ);
    if (!error) {
        error = start_lane(lanes, handle, options, kind, own, result);
        if (error)
            engine_untake_handle(lanes->engine, handle, IOU_READ);
    }
    return error;
}

/* ---- for its owner ---------------------------------------------------------------------------------------------- */

int iou_lane_fd(iou_lane *lane) {
    return lane->counts.event_fd;
}

/* Change the state of a lane, and wake its tasks. */
static void set_state(iou_lane *lane, atomic_bool *flag) {
    if (lanes_are_foreign(lane->lanes))
        return;
    pthread_mutex_lock(&lane->tasks.lock);
    *flag = true;
    if (!lane->tasks.over)
        lane_wake(lane);
    pthread_mutex_unlock(&lane->tasks.lock);
}

void iou_lane_refuse(iou_lane *lane) {
    set_state(lane, &lane->state.refusing);
}

void iou_lane_leave(iou_lane *lane) {
    set_state(lane, &lane->state.leaving);
}

void iou_lane_abort(iou_lane *lane) {
    if (lanes_are_foreign(lane->lanes))
        return;
    pthread_mutex_lock(&lane->tasks.lock);
    if (!lane->tasks.over)
        lane_break(lane, ECANCELED);
    pthread_mutex_unlock(&lane->tasks.lock);
}

/* Count the operations in storage, and get the longest time of one there. The lock is held. */
static void look_at_storage(const struct iou_lane *lane, iou_lane_stats *stats) {
    uint64_t now = now_ns();
    for (const struct link *node = lane->tasks.all.next; node != &lane->tasks.all; node = node->next) {
        uint64_t since = container_of(node, const struct task, link)->storage_since;
        if (since == 0)
            continue;
        stats->running++;
        stats->storage_wait = max_u64(stats->storage_wait, now > since ? now - since : 0);
    }
}

void iou_lane_get_stats(iou_lane *lane, iou_lane_stats *stats) {
    *stats = (iou_lane_stats){0};
    if (lanes_are_foreign(lane->lanes))
        return;
    pthread_mutex_lock(&lane->tasks.lock);
    *stats = (iou_lane_stats){
        .requests = lane->state.requests,
        .received = lane->socket.received,
        .sent = lane->socket.sent,
        .read = lane->counts.read,
        .written = lane->counts.written,
        .failed = lane->counts.failed,
        .ended = lane->tasks.ended,
        .error = lane->state.error,
    };
    look_at_storage(lane, stats);
    if (lane->state.active && stats->running == 0)
        stats->running = 1;
    pthread_mutex_lock(&lane->counts.lock);
    stats->reports_lost = lane->counts.reports_lost;
    stats->ranges = lane->counts.ranges_count;
    pthread_mutex_unlock(&lane->counts.lock);
    for (size_t i = 0; i < LENGTH(stats->zeroed); i++)
        stats->zeroed[i] = lane->counts.zeroed[i];
    pthread_mutex_unlock(&lane->tasks.lock);
}

int iou_lane_slowest(iou_lane *lane, iou_running *record) {
    bool found = false;
    if (lanes_are_foreign(lane->lanes))
        return -ECHILD;
    pthread_mutex_lock(&lane->tasks.lock);
    if (!lane->tasks.over) /* the engine may be freed otherwise */
        found = engine_slowest(lane->engine, lane, record);
    pthread_mutex_unlock(&lane->tasks.lock);
    return found;
}

int iou_lane_oldest(iou_lane *lane, iou_record *record) {
    iou_record each;
    int found = 0;
    if (lanes_are_foreign(lane->lanes))
        return -ECHILD;
    pthread_mutex_lock(&lane->tasks.lock);
    for (struct link *node = lane->tasks.all.next; node != &lane->tasks.all; node = node->next) {
        struct task *task = container_of(node, struct task, link);
        if (!work_look(task->work, &each) || (found && each.elapsed <= record->elapsed))
            continue;
        *record = each;
        found = 1;
    }
    pthread_mutex_unlock(&lane->tasks.lock);
    return found;
}

int iou_lane_free(iou_lane *lane) {
    if (lanes_are_foreign(lane->lanes))
        return -ECHILD;
    pthread_mutex_lock(&lane->tasks.lock);
    bool ended = lane->tasks.ended;
    pthread_mutex_unlock(&lane->tasks.lock);
    if (!ended)
        return -EBUSY;
    lane->kind->end(lane);
    free_lane(lane);
    return 0;
}
