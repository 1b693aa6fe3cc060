/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Where the time of a request goes. Each wait of a task that works for a request is added when it ends, without the
 * time that was added already: of simultaneous waits, the first one to end counts. So the sum of the waits is not
 * longer than the request, however many tasks work for it.
 */

#include "base/clock.h"
#include "base/fiber.h"
#include "base/numbers.h"
#include "lane/lane.h"
#include "lane/lanes.h"

/* Shorter waits are not added, so that requests that storage answers out of its cache take no lock. */
#define LEAST_NS 50000u

void work_init(struct lane_work *work) {
    pthread_mutex_init(&work->lock, NULL);
}

void work_destroy(struct lane_work *work) {
    pthread_mutex_destroy(&work->lock);
}

/* Return the request that the calling task works for. NULL: the caller is no task. */
static struct lane_work *mine(void) {
    const struct fiber *fiber = fiber_current();
    return fiber ? fiber->data : NULL;
}

void work_begin(struct lane_work *work, uint64_t began, const iou_record *what) {
    pthread_mutex_lock(&work->lock);
    for (size_t i = 0; i < LENGTH(work->waited); i++)
        work->waited[i] = 0;
    work->waited_until = began;
    work->kind = what->kind;
    work->flags = what->flags;
    work->offset = what->offset;
    work->length = what->length;
    work->began = began;
    pthread_mutex_unlock(&work->lock);
}

/* Set the times of a request that began at `began`. The lock is held. */
static void set_times(const struct lane_work *work, uint64_t began, iou_record *record) {
    record->elapsed = now_ns() - began;
    for (size_t i = 0; i < LENGTH(work->waited); i++)
        record->waited[i] = work->waited[i];
}

void work_record(struct iou_lane *lane, struct lane_work *work, iou_record result) {
    uint64_t began = work->began;
    if (!began)
        return;
    if (now_ns() - began >= records_least(lane->lanes->records)) {
        pthread_mutex_lock(&work->lock);
        set_times(work, began, &result);
        pthread_mutex_unlock(&work->lock);
        result.lane = lane->number;
        records_add(lane->lanes->records, &result);
    }
    work->began = 0;
}

static iou_record what_runs(const struct lane_work *work) {
    return (iou_record){
        .offset = work->offset,
        .length = work->length,
        .kind = (uint32_t)work->kind,
        .flags = (uint32_t)work->flags,
    };
}

void work_cut(struct iou_lane *lane, struct lane_work *work) {
    iou_record result = what_runs(work);
    result.error = lane->state.error;
    work_record(lane, work, result);
}

bool work_look(struct lane_work *work, iou_record *record) {
    pthread_mutex_lock(&work->lock);
    uint64_t began = work->began; /* read once: work_record() clears it without the lock */
    *record = what_runs(work);
    set_times(work, began, record);
    pthread_mutex_unlock(&work->lock);
    if (!began)
        return false;
    record->result = IOU_WAITS;
    for (uint32_t i = IOU_WAITS; i-- > 0;)
        if (work->waiting[i])
            record->result = i;
    return true;
}

/* ---- waits ------------------------------------------------------------------------------------------------------ */

uint64_t work_wait(iou_wait kind) {
    struct lane_work *work = mine();
    if (work)
        work->waiting[kind]++;
    return now_ns();
}

void work_go_on(iou_wait kind, uint64_t since) {
    uint64_t now = now_ns();
    struct lane_work *work = mine();
    if (!work)
        return;
    work->waiting[kind]--;
    if (now - since < LEAST_NS)
        return;
    pthread_mutex_lock(&work->lock);
    since = max_u64(since, work->waited_until);
    if (now > since) {
        work->waited[kind] += now - since;
        work->waited_until = now;
    }
    pthread_mutex_unlock(&work->lock);
}
