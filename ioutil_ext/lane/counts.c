/* SPDX-License-Identifier: Apache-2.0 */

/* The counters and reports of a lane: the ranges that were transferred, and operations that failed or were slow. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/lane.h"

/* Most ranges of a lane. A task that has another one waits until the owner has fetched some. */
#define MAX_RANGES 65536u
#define FIRST_RANGES 64u

/* With so many ranges, the owner is notified to fetch them. */
#define MANY_RANGES 8192u

/* A task that waits for the owner checks at this interval whether the owner has fetched ranges. */
#define LOOK_NS UINT64_C(100000000)

#define SLOW_NS (IOU_SLOW_SECONDS * UINT64_C(1000000000))

void lane_notify(struct iou_lane *lane) {
    eventfd_write(lane->counts.event_fd, 1);
}

void counts_free(struct iou_lane *lane) {
    free(lane->counts.ranges);
}

/* ---- ranges ----------------------------------------------------------------------------------------------------- */

static int compare_ranges(const void *one, const void *other) {
    const iou_range *a = one, *b = other;
    return (a->start > b->start) - (a->start < b->start);
}

/* Sort the ranges, and merge those that overlap or are adjacent. */
static void tidy(struct iou_lane *lane) {
    iou_range *ranges = lane->counts.ranges;
    uint32_t last = 0;
    if (lane->counts.ranges_count == 0)
        return;
    qsort(ranges, lane->counts.ranges_count, sizeof(*ranges), compare_ranges);
    for (uint32_t i = 1; i < lane->counts.ranges_count; i++) {
        if (ranges[i].start <= ranges[last].end)
            ranges[last].end = max_u64(ranges[last].end, ranges[i].end);
        else
            ranges[++last] = ranges[i];
    }
    lane->counts.ranges_count = last + 1;
}

static bool grow_ranges(struct iou_lane *lane) {
    uint32_t size = lane->counts.ranges_size ? 2 * lane->counts.ranges_size : FIRST_RANGES;
    if (size > MAX_RANGES)
        return false;
    iou_range *ranges = realloc(lane->counts.ranges, size * sizeof(*ranges));
    if (!ranges)
        return false;
    lane->counts.ranges = ranges;
    lane->counts.ranges_size = size;
    return true;
}

/* False: the caller has to wait for the owner. */
static bool make_range_room(struct iou_lane *lane) {
    if (lane->counts.ranges_count < lane->counts.ranges_size)
        return true;
    tidy(lane);
    return lane->counts.ranges_count < lane->counts.ranges_size / 2 || grow_ranges(lane) ||
           lane->counts.ranges_count < lane->counts.ranges_size;
}

/* Append a range. A broken lane may lose ranges: its owner may not fetch any more. Releases the lock while it waits. */
static void append(struct iou_lane *lane, uint64_t start, uint64_t end) {
    while (!make_range_room(lane)) {
        if (lane->state.broken)
            return;
        pthread_mutex_unlock(&lane->counts.lock);
        lane_notify(lane);
        lane_await(lane, now_ns() + LOOK_NS);
        pthread_mutex_lock(&lane->counts.lock);
    }
    lane->counts.ranges[lane->counts.ranges_count++] = (iou_range){.start = start, .end = end};
    if (lane->counts.ranges_count == MANY_RANGES)
        lane_notify(lane);
}

void counts_add(struct iou_lane *lane, uint64_t start, uint64_t end) {
    pthread_mutex_lock(&lane->counts.lock);
    iou_range *last = lane->counts.ranges_count ? &lane->counts.ranges[lane->counts.ranges_count - 1] : NULL;
    if (last && start <= last->end && end >= last->start) {
        last->start = min_u64(last->start, start);
        last->end = max_u64(last->end, end);
    } else {
        append(lane, start, end);
    }
    pthread_mutex_unlock(&lane->counts.lock);
}

int iou_lane_counted(iou_lane *lane, iou_range *ranges, uint32_t max) {
    if (lanes_are_foreign(lane->lanes))
        return -ECHILD;
    pthread_mutex_lock(&lane->counts.lock);
    tidy(lane);
    uint32_t count = (uint32_t)min_u64(max, lane->counts.ranges_count);
    lane->counts.ranges_count -= count;
    if (count)
        memcpy(ranges, lane->counts.ranges + lane->counts.ranges_count, count * sizeof(*ranges));
    pthread_mutex_unlock(&lane->counts.lock);
    if (count)
        loop_interrupt(&lane->tasks.loop);
    return (int)count;
}

/* ---- reports ---------------------------------------------------------------------------------------------------- */

static bool gave_up(const struct op *op) {
    for (size_t i = 0; i < LENGTH(op->result.given_up); i++)
        if (op->result.given_up[i])
            return true;
    return false;
}

void counts_report(struct iou_lane *lane, const struct op *op, int error) {
    if (!error && !gave_up(op) && op->result.elapsed < SLOW_NS)
        return;
    iou_lane_report report = {
        .offset = op->offset,
        .length = op->length,
        .elapsed = op->result.elapsed,
        .kind = op->kind,
        .error = error,
        .syscall = op->result.syscall,
        .size = op->result.size,
    };
    memcpy(report.given_up, op->result.given_up, sizeof(report.given_up));
    pthread_mutex_lock(&lane->counts.lock);
    if (lane->counts.reports_count < IOU_LANE_REPORTS)
        lane->counts.reports[lane->counts.reports_count++] = report;
    else
        lane->counts.reports_lost++;
    pthread_mutex_unlock(&lane->counts.lock);
    lane_notify(lane);
}

int iou_lane_reports(iou_lane *lane, iou_lane_report *reports, uint32_t max) {
    eventfd_t events;
    if (lanes_are_foreign(lane->lanes))
        return -ECHILD;
    eventfd_read(lane->counts.event_fd, &events);
    pthread_mutex_lock(&lane->counts.lock);
    uint32_t count = (uint32_t)min_u64(max, lane->counts.reports_count);
    memcpy(reports, lane->counts.reports, count * sizeof(*reports));
    lane->counts.reports_count -= count;
    memmove(lane->counts.reports, lane->counts.reports + count, lane->counts.reports_count * sizeof(*reports));
    pthread_mutex_unlock(&lane->counts.lock);
    return (int)count;
}
