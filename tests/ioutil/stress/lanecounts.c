/* SPDX-License-Identifier: Apache-2.0 */

/* What a lane tells of itself, when its owner is slow. */

#include "laneclient.h"

#include <sys/eventfd.h>

#define TELLERS 3
#define RANGES 30000u /* of each teller: together more than are kept */
#define SPACING 16
#define RANGE_LENGTH 8

struct teller {
    struct fiber fiber;
    struct iou_lane *lane;
    uint64_t start;
};

/* Each range once, in an order in which neighbours seldom follow each other. */
static void tell_ranges(struct fiber *fiber) {
    const struct teller *teller = container_of(fiber, struct teller, fiber);
    for (uint64_t i = 0; i < RANGES; i++) {
        uint64_t start = teller->start + i * 7919 % RANGES * SPACING;
        counts_add(teller->lane, start, start + RANGE_LENGTH);
        if (i % 1000 == 0) {
            struct op op = {.kind = IOU_READ, .result.error = EIO};
            counts_report(teller->lane, &op, op.result.error);
        }
    }
}

static void *run_loop(void *argument) {
    loop_run(argument);
    return NULL;
}

static void interrupted(struct loop *loop) {
    lane_changed(container_of(loop, struct iou_lane, tasks.loop));
}

static uint64_t fetch_ranges(struct iou_lane *lane, iou_range *ranges, uint32_t most) {
    uint64_t bytes = 0;
    int count = iou_lane_counted(lane, ranges, most);
    CHECK(count >= 0 && (uint32_t)count <= most);
    for (int i = 0; i < count; i++) {
        CHECK(ranges[i].start < ranges[i].end && (i == 0 || ranges[i - 1].end < ranges[i].start));
        bytes += ranges[i].end - ranges[i].start;
    }
    return bytes;
}

static uint64_t fetch_reports(struct iou_lane *lane) {
    iou_lane_report reports[IOU_LANE_REPORTS];
    return (uint64_t)iou_lane_reports(lane, reports, IOU_LANE_REPORTS);
}

void test_counts(void) {
    struct iou_lane *lane = calloc(1, sizeof(*lane));
    iou_range *ranges = malloc(5000 * sizeof(*ranges));
    struct teller tellers[TELLERS];
    pthread_t thread;
    uint64_t bytes = 0, reports = 0;
    struct iou_lanes lanes = {.born = fork_generation()};
    CHECK(lane && ranges);
    lane->lanes = &lanes;
    lane->counts.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&lane->counts.lock, NULL);
    tasks_init(lane);
    CHECK(loop_init(&lane->tasks.loop) == 0);
    lane->tasks.loop.interrupted = interrupted;
    for (unsigned i = 0; i < TELLERS; i++) {
        tellers[i] = (struct teller){.lane = lane, .start = (uint64_t)i * RANGES * SPACING};
        CHECK(loop_start(&lane->tasks.loop, &tellers[i].fiber, tell_ranges) == 0);
    }
    CHECK(pthread_create(&thread, NULL, run_loop, &lane->tasks.loop) == 0);
    while (bytes < (uint64_t)TELLERS * RANGES * RANGE_LENGTH) {
        bytes += fetch_ranges(lane, ranges, 5000);
        reports += fetch_reports(lane);
        usleep(2000);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(fetch_ranges(lane, ranges, 5000) == 0);
    CHECK(bytes == (uint64_t)TELLERS * RANGES * RANGE_LENGTH);
    reports += fetch_reports(lane) + lane->counts.reports_lost;
    CHECK(reports == (uint64_t)TELLERS * (RANGES / 1000));
    counts_free(lane);
    CHECK(close(lane->counts.event_fd) == 0);
    pthread_mutex_destroy(&lane->counts.lock);
    tasks_free(lane);
    free(lane);
    free(ranges);
    printf("counts: %u ranges\n", TELLERS * RANGES);
}
