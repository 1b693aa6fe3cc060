/* SPDX-License-Identifier: Apache-2.0 */

/* Operations that end before their time: canceled, closed and stopped while they run, wait and are parked. */

#include "stress.h"

#define BURST 200

struct burst {
    iou_control controls[BURST];
    char buffers[BURST][700];
    unsigned submitted;
};

/* Overlapping writes without order, so that many are parked; only how they end is looked at. */
static void submit_burst(struct burst *burst, iou_queue *queue, iou_handle *handle, uint64_t *random) {
    for (unsigned i = 0; i < BURST; i++) {
        bool zero = below(random, 4) == 0;
        burst->controls[i] = (iou_control){0};
        int error = iou_submit(queue, i, handle, zero ? IOU_ZERO : IOU_WRITE, 0, below(random, 20000),
                               1 + below(random, 700), zero ? NULL : burst->buffers[i], 0, &burst->controls[i]);
        CHECK(error == 0);
    }
    burst->submitted = BURST;
}

static unsigned reap_burst(iou_queue *queue, unsigned count) {
    iou_completion completions[32];
    unsigned canceled = 0;
    while (count) {
        uint32_t reaped = reap(queue, completions, 32);
        for (uint32_t i = 0; i < reaped; i++) {
            CHECK(completions[i].error == 0 || completions[i].error == ECANCELED);
            canceled += completions[i].error == ECANCELED;
        }
        CHECK(reaped <= count);
        count -= reaped;
    }
    return canceled;
}

/* Queued and parked operations are canceled while others end; the handle is closed while all of it is in flight. */
void test_cancel(unsigned rounds, uint64_t seed) {
    iou_engine *engine;
    iou_queue *queue;
    char path[4096];
    unsigned canceled = 0;
    struct burst *burst = calloc(1, sizeof(*burst));
    file_path(path, sizeof(path), "cancel", 0);
    make_file(path, 10000);
    CHECK(burst && iou_engine_new(8, 50, &engine) == 0 && iou_queue_new(engine, &queue) == 0);
    for (unsigned round = 0; round < rounds; round++) {
        iou_handle *handle = open_image(queue, path, IOU_WRITABLE);
        submit_burst(burst, queue, handle, &seed);
        for (unsigned i = 0; i < BURST; i++)
            if (below(&seed, 2))
                __atomic_store_n(&burst->controls[i].canceled, 1, __ATOMIC_RELAXED);
        CHECK(iou_submit(queue, BURST, handle, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL) == 0);
        CHECK(iou_cancel_queued(engine) >= 0);
        canceled += reap_burst(queue, BURST + 1);
    }
    stop_engine(engine);
    CHECK(iou_queue_free(queue) == 0 && iou_engine_free(engine) == 0);
    free(burst);
    printf("cancel and close in flight: %u rounds, %u operations canceled\n", rounds, canceled);
}

/* An engine is stopped while operations run, wait and are parked, and another thread asks what it does. */
static void *watch_engine(void *argument) {
    iou_engine *engine = argument;
    iou_running records[8];
    iou_stats stats;
    do {
        int count = iou_engine_running(engine, records, 8);
        for (int i = 1; i < count; i++)
            CHECK(records[i].elapsed <= records[i - 1].elapsed);
        iou_engine_stats(engine, &stats);
    } while (stats.threads);
    return NULL;
}

static void stop_once(const char *path, struct burst *burst, uint64_t *random, unsigned *canceled) {
    iou_engine *engine;
    iou_queue *queues[2];
    iou_completion completion;
    pthread_t watcher;
    CHECK(iou_engine_new(8, 50, &engine) == 0);
    CHECK(iou_queue_new(engine, &queues[0]) == 0 && iou_queue_new(engine, &queues[1]) == 0);
    iou_handle *handle = open_image(queues[0], path, IOU_WRITABLE);
    iou_handle *other = open_image(queues[1], path, IOU_WRITABLE | IOU_BUFFERED);
    CHECK(pthread_create(&watcher, NULL, watch_engine, engine) == 0);
    submit_burst(&burst[0], queues[0], handle, random);
    submit_burst(&burst[1], queues[1], other, random);
    CHECK(iou_submit(queues[0], 0, handle, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL) == 0);
    stop_engine(engine);
    CHECK(iou_submit(queues[1], 0, other, IOU_STAT, 0, 0, 0, NULL, 0, NULL) == -ESHUTDOWN);
    CHECK(iou_queue_free(queues[0]) == -EBUSY && iou_engine_free(engine) == -EBUSY);
    *canceled += reap_burst(queues[0], BURST + 1) + reap_burst(queues[1], BURST);
    CHECK(pthread_join(watcher, NULL) == 0);
    CHECK(iou_execute(other, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL, &completion) == 0);
    CHECK(iou_queue_free(queues[0]) == 0 && iou_queue_free(queues[1]) == 0 && iou_engine_free(engine) == 0);
}

void test_stop(unsigned rounds, uint64_t seed) {
    char path[4096];
    unsigned canceled = 0;
    struct burst *burst = calloc(2, sizeof(*burst));
    CHECK(burst);
    file_path(path, sizeof(path), "stop", 0);
    make_file(path, 777);
    for (unsigned round = 0; round < rounds; round++)
        stop_once(path, burst, &seed, &canceled);
    free(burst);
    printf("stop: %u rounds, %u operations canceled\n", rounds, canceled);
}
