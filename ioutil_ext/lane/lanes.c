/* SPDX-License-Identifier: Apache-2.0 */

/* The state that all lanes share, and how a lane joins and leaves it. */

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "engine/engine.h"
#include "lane/lane.h"
#include "lane/lanes.h"
#include "lane/records.h"
#include "lane/slabs.h"

/*
 * The memory of a long READ of NBD whose reply must be one piece. It is outside of the slabs, and one such READ has it
 * at a time: long READs can make only each other wait.
 */
#define MAX_LONG (LANE_LONG + PAGE_UNIT)

_Static_assert(IOU_LANES_MIN_MEMORY >= 8 * LANE_PIECE + 2 * PAGE_UNIT, "some slabs, and half of it for a long read");

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
    lanes->long_limit = min_u64(MAX_LONG, memory / 2 + PAGE_UNIT); /* memory of 64 MiB is enough for the longest READ */
    lanes->limit = memory - lanes->long_limit;
    link_init(&lanes->kept);
    pthread_mutex_init(&lanes->lock, NULL);
    link_init(&lanes->quotas);
    link_init(&lanes->members);
    link_init(&lanes->waiting);
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
    slab_free_kept(lanes);
    records_free(lanes->records);
    pthread_mutex_destroy(&lanes->lock);
    free(lanes);
    return 0;
}

void iou_lanes_get_stats(iou_lanes *lanes, iou_lanes_stats *stats) {
    *stats = (iou_lanes_stats){0};
    if (lanes_are_foreign(lanes))
        return;
    pthread_mutex_lock(&lanes->lock);
    stats->limit = lanes->limit;
    stats->used = lanes->used - lanes->kept_size;
    for (const struct link *node = lanes->waiting.next; node != &lanes->waiting; node = node->next)
        stats->waiting++;
    pthread_mutex_unlock(&lanes->lock);
}

/* ---- joining and leaving ---------------------------------------------------------------------------------------- */

/* The lock is held. NULL: no memory. */
static struct ticket_quota *join_quota(struct iou_lanes *lanes, const iou_lease *ticket) {
    struct ticket_quota *quota = NULL;
    for (struct link *node = lanes->quotas.next; node != &lanes->quotas && !quota; node = node->next)
        if (container_of(node, struct ticket_quota, link)->ticket == ticket)
            quota = container_of(node, struct ticket_quota, link);
    if (!quota && (quota = calloc(1, sizeof(*quota)))) {
        quota->ticket = ticket;
        link_init(&quota->waiters);
        link_append(&lanes->quotas, &quota->link);
    }
    if (quota)
        quota->lanes++;
    return quota;
}

/* The lock is held. */
static void leave_quota(struct ticket_quota *quota) {
    if (--quota->lanes)
        return;
    link_remove(&quota->link);
    free(quota);
}

/* Leave what the lane has joined. The lock is held. */
static void leave_parts(struct iou_lane *lane) {
    if (lane->memory.share)
        limit_part(lane->memory.share);
    if (lane->memory.slabs)
        slab_part(lane->lanes, lane->memory.slabs);
    if (lane->memory.quota)
        leave_quota(lane->memory.quota);
    lane->memory.share = NULL;
}

int lanes_join(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    pthread_mutex_lock(&lanes->lock);
    lane->memory.quota = join_quota(lanes, lane->lease);
    lane->memory.slabs = lane->memory.quota ? slab_join(lanes, lane->handle->image->device) : NULL;
    lane->memory.share = lane->memory.slabs ? limit_join(slab_limit(lane->memory.slabs), lane->lease) : NULL;
    bool joined = lane->memory.share;
    if (joined) {
        link_append(&lanes->members, &lane->memory.member);
        lanes->count++;
    } else {
        leave_parts(lane);
    }
    pthread_mutex_unlock(&lanes->lock);
    return joined ? 0 : -ENOMEM;
}

void lanes_leave(struct iou_lane *lane) {
    struct iou_lanes *lanes = lane->lanes;
    if (!lane->memory.share)
        return;
    pthread_mutex_lock(&lanes->lock);
    link_remove(&lane->memory.member);
    lanes->count--;
    leave_parts(lane);
    pthread_mutex_unlock(&lanes->lock);
}

/* ---- places ----------------------------------------------------------------------------------------------------- */

void iou_lanes_recall(iou_lanes *lanes, uint32_t more) {
    if (lanes_are_foreign(lanes))
        return;
    pthread_mutex_lock(&lanes->lock);
    lanes->wanted = more ? lanes->wanted + more : 0;
    for (struct link *node = lanes->members.next; node != &lanes->members && lanes->wanted; node = node->next) {
        struct iou_lane *lane = container_of(node, struct iou_lane, memory.member);
        if (lane->state.rests && !lane->state.refusing && lane_gives_place(lane)) {
            lane->state.refusing = true;
            loop_interrupt(&lane->tasks.loop);
        }
    }
    pthread_mutex_unlock(&lanes->lock);
}
