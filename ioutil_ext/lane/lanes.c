/* SPDX-License-Identifier: Apache-2.0 */

/* The state that all lanes share, and how a lane joins and leaves it. */

#include <errno.h>
#include <stdlib.h>

#include "engine/engine.h"
#include "lane/lane.h"
#include "lane/lanes.h"

/* ---- the shared state ------------------------------------------------------------------------------------------- */

int iou_lanes_new(iou_engine *engine, uint64_t memory, iou_lanes **result) {
    if (engine_is_foreign(engine))
        return -ECHILD;
    if (memory < IOU_LANES_MIN_MEMORY || memory > INT64_MAX || !result)
        return -EINVAL;
    iou_lanes *lanes = calloc(1, sizeof(*lanes));
    if (!lanes || !(lanes->records = records_new())) {
        free(lanes);
        return -ENOMEM;
    }
    lanes->engine = engine;
    lanes->born = fork_generation();
    pool_init(&lanes->pool, memory);
    pthread_mutex_init(&lanes->lock, NULL);
    link_init(&lanes->members);
    *result = lanes;
    return 0;
}

int iou_lanes_free(iou_lanes *lanes) {
    if (lanes_are_foreign(lanes))
        return -ECHILD;
    pthread_mutex_lock(&lanes->lock);
    bool busy = lanes->count;
    pthread_mutex_unlock(&lanes->lock);
    if (busy)
        return -EBUSY;
    pool_destroy(&lanes->pool);
    records_free(lanes->records);
    pthread_mutex_destroy(&lanes->lock);
    free(lanes);
    return 0;
}

void iou_lanes_get_stats(iou_lanes *lanes, iou_lanes_stats *stats) {
    *stats = (iou_lanes_stats){0};
    if (!lanes_are_foreign(lanes))
        pool_get_stats(&lanes->pool, stats);
}

/* ---- joining and leaving ---------------------------------------------------------------------------------------- */

static bool user_is_cut(const struct memory_user *user) {
    return lane_cuts(container_of(user, struct iou_lane, memory));
}

int lanes_join(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    lane->memory.cuts = user_is_cut;
    int error = pool_join(&lanes->pool, &lane->memory, lane->lease, lane->handle->image->waits_for);
    if (error)
        return error;
    pthread_mutex_lock(&lanes->lock);
    link_append(&lanes->members, &lane->member);
    lanes->count++;
    pthread_mutex_unlock(&lanes->lock);
    return 0;
}

void lanes_leave(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    if (!lane->memory.share)
        return;
    pool_leave(&lane->memory);
    pthread_mutex_lock(&lanes->lock);
    link_remove(&lane->member);
    lanes->count--;
    pthread_mutex_unlock(&lanes->lock);
}

/* ---- places ----------------------------------------------------------------------------------------------------- */

/* Let a lane give its place back if one is wanted, once only. The lock is held. */
static bool give_place(struct iou_lane *lane) {
    if (!lane->lanes->wanted || lane->state.refusing)
        return false;
    lane->lanes->wanted--;
    lane->state.refusing = true;
    return true;
}

bool lane_gives_place(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    if (!lanes->wanted) /* nearly always, so this takes no lock */
        return false;
    pthread_mutex_lock(&lanes->lock);
    bool gives = give_place(lane);
    pthread_mutex_unlock(&lanes->lock);
    return gives;
}

void iou_lanes_recall(iou_lanes *lanes, uint32_t more) {
    if (lanes_are_foreign(lanes))
        return;
    pthread_mutex_lock(&lanes->lock);
    lanes->wanted = more ? lanes->wanted + more : 0;
    for (struct link *node = lanes->members.next; node != &lanes->members && lanes->wanted; node = node->next) {
        struct iou_lane *lane = container_of(node, struct iou_lane, member);
        if (lane->state.rests && give_place(lane))
            loop_interrupt(&lane->tasks.loop);
    }
    pthread_mutex_unlock(&lanes->lock);
}
