/* SPDX-License-Identifier: Apache-2.0 */

/* What a lane tells of itself, when its owner is slow. */

#include "laneclient.h"

#include <sys/eventfd.h>

#define THREADS 3
#define RANGES 30000u /* of each thread: together more than are kept */
#define SPACING 16
#define RANGE_LENGTH 8

struct teller {
    struct iou_lane *lane;
    uint64_t start;
};

/* Each range once, in an order in which neighbours seldom follow each other. */
static void *tell_ranges(void *argument) {
    const struct teller *teller = argument;
    for (uint64_t i = 0; i < RANGES; i++) {
        uint64_t start = teller->start + i * 7919 % RANGES * SPACING;
        counts_add(teller->lane, start, start + RANGE_LENGTH);
        if (i % 1000 == 0) {
            struct op op = {.kind = IOU_READ, .result.error = EIO};
            counts_report(teller->lane, &op, op.result.error);
        }
    }
    return NULL;
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
    struct teller tellers[THREADS];
    pthread_t threads[THREADS];
    uint64_t bytes = 0, reports = 0;
    struct iou_lanes lanes = {.born = fork_generation()};
    CHECK(lane && ranges);
    lane->lanes = &lanes;
    lane->counts.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&lane->counts.lock, NULL);
    pthread_cond_init(&lane->counts.fetched, NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        tellers[i] = (struct teller){lane, (uint64_t)i * RANGES * SPACING};
        CHECK(pthread_create(&threads[i], NULL, tell_ranges, &tellers[i]) == 0);
    }
    while (bytes < (uint64_t)THREADS * RANGES * RANGE_LENGTH) {
        bytes += fetch_ranges(lane, ranges, 5000);
        reports += fetch_reports(lane);
        usleep(2000);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(fetch_ranges(lane, ranges, 5000) == 0);
    CHECK(bytes == (uint64_t)THREADS * RANGES * RANGE_LENGTH);
    reports += fetch_reports(lane) + lane->counts.reports_lost;
    CHECK(reports == (uint64_t)THREADS * (RANGES / 1000));
    counts_free(lane);
    CHECK(close(lane->counts.event_fd) == 0);
    pthread_mutex_destroy(&lane->counts.lock);
    pthread_cond_destroy(&lane->counts.fetched);
    free(lane);
    free(ranges);
    printf("counts: %u ranges\n", THREADS * RANGES);
}
