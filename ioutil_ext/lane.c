/* SPDX-License-Identifier: Apache-2.0 */

/* The beginning of a lane, what its owner can ask of it, and its end. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lane.h"

static int check(const iou_handle *handle, const iou_lane_options *options) {
    if (!handle || options->rest_length > LANE_STAGING || options->size > INT64_MAX || options->timeout_ms == 0 ||
        options->timeout_ms > INT32_MAX)
        return -EINVAL;
    if (!(options->flags & IOU_LANE_READ_ONLY) && !handle->writable)
        return -EINVAL;
    return 0;
}

/* All but what its kind knows. */
static void free_lane(struct iou_lane *lane) {
    memory_part(lane);
    turns_free(lane);
    if (lane->wake_fd != -1)
        close(lane->wake_fd);
    if (lane->event_fd != -1)
        close(lane->event_fd);
    counts_free(lane);
    pthread_mutex_destroy(&lane->send_lock);
    pthread_mutex_destroy(&lane->lock);
    pthread_mutex_destroy(&lane->counts_lock);
    pthread_cond_destroy(&lane->counts_fetched);
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
    lane->size = options->size;
    lane->flags = options->flags;
    lane->timeout_ms = (int)options->timeout_ms;
    lane->fd = options->fd;
    lane->tls = options->tls;
    operations_init(lane);
    socket_init_turns(lane);
    pthread_mutex_init(&lane->lock, NULL);
    pthread_mutex_init(&lane->counts_lock, NULL);
    pthread_cond_init(&lane->counts_fetched, NULL);
    link_init(&lane->threads);
    link_init(&lane->idle);
    link_init(&lane->spare);
    lane->wake_fd = lane->event_fd = -1;
    if (options->rest_length)
        memcpy(lane->staging, options->rest, options->rest_length);
    lane->staged_end = (uint32_t)options->rest_length;
    return lane;
}

static int make_events(struct iou_lane *lane) {
    lane->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    lane->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return lane->wake_fd == -1 || lane->event_fd == -1 ? -errno : 0;
}

static int start(iou_lanes *lanes, iou_handle *handle, const iou_lane_options *options, const struct lane_kind *kind,
                 void *own, iou_lane **result) {
    struct iou_lane *lane = new_lane(lanes, options);
    if (!lane)
        return -ENOMEM;
    lane->handle = handle;
    lane->kind = kind;
    lane->own = own;
    int error = memory_join(lane);
    if (!error)
        error = make_events(lane);
    if (!error)
        error = socket_init(lane);
    if (!error && (error = turn_first(lane)))
        socket_restore(lane);
    if (error)
        free_lane(lane);
    else
        *result = lane;
    return error;
}

int lane_start(iou_lanes *lanes, iou_handle *handle, const iou_lane_options *options, const struct lane_kind *kind,
               void *own, iou_lane **result) {
    int error = check(handle, options);
    if (!error)
        error = handle_take(handle, IOU_READ, lanes->engine);
    if (!error) {
        error = start(lanes, handle, options, kind, own, result);
        if (error)
            handle_untake(handle, IOU_READ, lanes->engine);
    }
    return error;
}

/* ---- for its owner ---------------------------------------------------------------------------------------------- */

int iou_lane_fd(iou_lane *lane) {
    return lane->event_fd;
}

bool lane_canceled(const struct iou_lane *lane) {
    return __atomic_load_n(&lane->control->canceled, __ATOMIC_RELAXED);
}

bool lane_refuses(const struct iou_lane *lane) {
    return lane->refusing || lane_canceled(lane) ||
           now_ns() >= __atomic_load_n(&lane->lease->expires, __ATOMIC_RELAXED);
}

/* What was ended by hand stays so: the word that is exchanged says it. */
void lane_renew(struct iou_lane *lane) {
    iou_lease *lease = lane->lease;
    uint64_t now = now_ns(), until = (now + lease->timeout) & ~(uint64_t)IOU_LEASE_ENDED;
    uint64_t expires = __atomic_load_n(&lease->expires, __ATOMIC_RELAXED);
    __atomic_store_n(&lease->active, now, __ATOMIC_RELAXED);
    while (expires < until && !(expires & IOU_LEASE_ENDED) &&
           !__atomic_compare_exchange_n(&lease->expires, &expires, until, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

bool lane_cuts(const struct iou_lane *lane) {
    return lane->kind->finishes ? lane_canceled(lane) : lane_refuses(lane);
}

void lane_wake(struct iou_lane *lane) {
    socket_wake(lane);
    counts_wake(lane);
    memory_wake(lane->lanes);
    claims_wake(&lane->handle->image->claims);
}

void iou_lane_refuse(iou_lane *lane) {
    if (lanes_are_foreign(lane->lanes))
        return;
    pthread_mutex_lock(&lane->lock);
    lane->refusing = true;
    if (!lane->ended)
        lane_wake(lane);
    pthread_mutex_unlock(&lane->lock);
}

void iou_lane_abort(iou_lane *lane) {
    if (lanes_are_foreign(lane->lanes))
        return;
    pthread_mutex_lock(&lane->lock);
    if (!lane->ended)
        socket_break(lane, ECANCELED);
    pthread_mutex_unlock(&lane->lock);
}

/* What threads do in storage, and for how long the oldest one has. The lock is held. */
static void look_at_storage(const struct iou_lane *lane, iou_lane_stats *stats) {
    uint64_t now = now_ns();
    for (const struct link *node = lane->threads.next; node != &lane->threads; node = node->next) {
        uint64_t since = container_of(node, const struct lane_thread, link)->storage_since;
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
    pthread_mutex_lock(&lane->lock);
    *stats = (iou_lane_stats){
        .requests = lane->requests,
        .received = lane->received,
        .sent = lane->sent,
        .ended = lane->ended,
        .error = lane->error,
    };
    look_at_storage(lane, stats);
    if (lane->active && stats->running == 0)
        stats->running = 1;
    pthread_mutex_lock(&lane->counts_lock);
    stats->reports_lost = lane->reports_lost;
    stats->ranges = lane->ranges_count;
    pthread_mutex_unlock(&lane->counts_lock);
    for (size_t i = 0; i < sizeof(stats->zeroed) / sizeof(*stats->zeroed); i++)
        stats->zeroed[i] = lane->zeroed[i];
    pthread_mutex_unlock(&lane->lock);
}

int iou_lane_free(iou_lane *lane) {
    if (lanes_are_foreign(lane->lanes))
        return -ECHILD;
    pthread_mutex_lock(&lane->lock);
    bool ended = lane->ended;
    pthread_mutex_unlock(&lane->lock);
    if (!ended)
        return -EBUSY;
    lane->kind->end(lane);
    free_lane(lane);
    return 0;
}
