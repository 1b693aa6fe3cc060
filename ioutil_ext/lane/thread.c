/* SPDX-License-Identifier: Apache-2.0 */

/* The thread of a lane. Nothing of the lane is shared with other threads, but what its owner looks at. */

#define _GNU_SOURCE
#include <errno.h>
#include <unistd.h>

#include "base/thread.h"
#include "engine/workers.h"
#include "lane/lane.h"
#include "lane/thread.h"

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
    lane->tasks.over = true; /* the number of the descriptor may be another one's after close() */
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

int lane_thread_start(struct iou_lane *lane) {
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
