/* SPDX-License-Identifier: Apache-2.0 */

/* Records of requests: many threads write, one reads, now and then too slowly. Each record comes once, or is counted.
 */

#include "lane/lane.h"
#include "lane/lanes.h"
#include "stress.h"

#define WRITERS 4u

struct recorder {
    pthread_t thread;
    struct records *records;
    uint64_t number, count, random;
};

/* All that a record says follows from its writer and its place. */
static iou_record nth(uint64_t writer, uint64_t place) {
    return (iou_record){
        .lane = writer,
        .offset = place,
        .length = place * 3 + writer,
        .elapsed = ~place,
        .kind = (uint32_t)place,
        .flags = (uint32_t)writer,
        .result = (uint32_t)(place >> 3),
        .error = (int32_t)(place & 0xff),
    };
}

static void *write_records(void *argument) {
    struct recorder *recorder = argument;
    for (uint64_t place = 0; place < recorder->count; place++) {
        iou_record record = nth(recorder->number, place);
        records_add(recorder->records, &record);
        if (below(&recorder->random, 5000) == 0)
            usleep((unsigned)below(&recorder->random, 2000));
    }
    return NULL;
}

/* Read what is there, a few at a time. Those of one writer come in their order. */
static uint64_t read_records(iou_lanes *lanes, uint64_t next[WRITERS], uint64_t *random) {
    iou_record records[100];
    uint64_t all = 0;
    uint32_t most = 1 + (uint32_t)below(random, 100);
    int count;
    do {
        count = iou_records_read(lanes, records, most);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) {
            iou_record wanted = nth(records[i].lane, records[i].offset);
            CHECK(memcmp(&records[i], &wanted, sizeof(wanted)) == 0);
            CHECK(wanted.lane < WRITERS && wanted.offset >= next[wanted.lane]);
            next[wanted.lane] = wanted.offset + 1;
        }
        all += (uint64_t)count;
    } while ((uint32_t)count == most);
    return all;
}

static bool have_ended(const iou_lanes *lanes, uint64_t count) {
    iou_records_stats stats;
    iou_records_get_stats((iou_lanes *)(uintptr_t)lanes, &stats);
    return stats.written + stats.lost == WRITERS * count;
}

void test_records(unsigned count, uint64_t seed) {
    struct recorder recorders[WRITERS];
    uint64_t next[WRITERS] = {0}, read = 0;
    iou_records_stats stats;
    iou_engine *engine;
    iou_lanes *lanes;
    bool ended;
    CHECK(iou_engine_new(4, 50, &engine) == 0 && iou_lanes_new(engine, IOU_LANES_MIN_MEMORY, &lanes) == 0);
    for (unsigned i = 0; i < WRITERS; i++) {
        recorders[i] =
            (struct recorder){.records = lanes->records, .number = i, .count = count, .random = seed + 2 * i};
        CHECK(pthread_create(&recorders[i].thread, NULL, write_records, &recorders[i]) == 0);
    }
    do {
        ended = have_ended(lanes, count);
        read += read_records(lanes, next, &seed);
        usleep((unsigned)below(&seed, 8) ? 0 : (unsigned)below(&seed, 5000));
    } while (!ended);
    for (unsigned i = 0; i < WRITERS; i++)
        CHECK(pthread_join(recorders[i].thread, NULL) == 0);
    read += read_records(lanes, next, &seed);
    iou_records_get_stats(lanes, &stats);
    CHECK(stats.read == read && stats.written == read && read + stats.lost == WRITERS * (uint64_t)count);
    stop_engine(engine);
    CHECK(iou_lanes_free(lanes) == 0 && iou_engine_free(engine) == 0);
    printf("records: %llu read, %llu lost\n", (unsigned long long)read, (unsigned long long)stats.lost);
}
