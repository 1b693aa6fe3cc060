/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Lanes under load: connections that come and go in all ways, on images of two devices whose storage is slow, fails and
 * sometimes takes so long that others must go on meanwhile, while the engine's own threads change what lies between.
 */

#include "laneclient.h"

#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>

#define LANES 4
#define IMAGES 2
#define MEMORY (17 * MIB)
#define PER_ENGINE 60 /* connections */
#define GAP 777       /* between the clients' areas; the engine's */

static struct {
    struct session sessions[LANES];
    iou_engine *engine;
    iou_queue *queue;
    iou_lanes *lanes;
    char paths[IMAGES][4096];
    int memory_fd;
    uint64_t random;
    atomic_bool ends;
} *stage;

/* ---- beside the lanes ------------------------------------------------------------------------------------------- */

static int do_gap(iou_queue *queue, iou_handle *handle, uint32_t kind, uint64_t offset, char *buffer) {
    int error = iou_submit(queue, 0, handle, kind, 0, offset, GAP, buffer, GAP, NULL);
    return error ? -error : reap_one(queue).error;
}

/* Write what lies between the clients' areas, in blocks that they share, and see that it stays. */
static void *fill_gaps(void *argument) {
    iou_queue *queue = argument;
    iou_handle *handles[IMAGES];
    for (unsigned i = 0; i < IMAGES; i++)
        handles[i] = open_image(queue, stage->paths[i], IOU_WRITABLE);
    char wanted[GAP], found[GAP];
    for (uint64_t i = 1; !stage->ends; i++) {
        uint64_t offset = stage->sessions[i % LANES].gap;
        iou_handle *handle = handles[i % IMAGES];
        pattern_fill(wanted, GAP, i);
        if (do_gap(queue, handle, IOU_WRITE, offset, wanted) == 0 &&
            do_gap(queue, handle, IOU_READ, offset, found) == 0)
            CHECK(memcmp(wanted, found, GAP) == 0);
        usleep(500);
    }
    for (unsigned i = 0; i < IMAGES; i++)
        close_image(queue, handles[i]);
    return NULL;
}

static void watch(void) {
    iou_running records[8];
    iou_stats stats;
    int count = iou_engine_running(stage->engine, records, 8);
    for (int i = 0; i < count; i++)
        CHECK(records[i].kind && records[i].path[0] == '/');
    iou_engine_stats(stage->engine, &stats);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static unsigned count_descriptors(void) {
    unsigned count = 0;
    DIR *entries = opendir("/proc/self/fd");
    CHECK(entries);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

static void wait_a_little(void) {
    struct pollfd polled[LANES];
    nfds_t count = 0;
    for (unsigned i = 0; i < LANES; i++)
        if (stage->sessions[i].lane)
            polled[count++] = (struct pollfd){.fd = iou_lane_fd(stage->sessions[i].lane), .events = POLLIN};
    poll(polled, count, 1);
}

/* Serve so many connections, or end those that there are. */
static void serve(unsigned connections, bool stopped) {
    unsigned started = 0, alive;
    do {
        alive = 0;
        for (unsigned i = 0; i < LANES; i++) {
            struct session *session = &stage->sessions[i];
            if (!session->lane && started < connections) {
                started++;
                session_start(session, stage->lanes, stage->queue,
                              stopped ? STOP : (enum ending)below(&stage->random, STOP));
            }
            if (session->lane)
                session_look_after(session);
            alive += session->lane != NULL;
        }
        if (stopped && started == connections)
            return;
        watch();
        wait_a_little();
    } while (alive || started < connections);
}

static void use_engine(unsigned connections) {
    pthread_t other;
    iou_queue *queue;
    CHECK(iou_engine_new(8, 50, &stage->engine) == 0 && iou_queue_new(stage->engine, &stage->queue) == 0);
    CHECK(iou_queue_new(stage->engine, &queue) == 0 && iou_lanes_new(stage->engine, MEMORY, &stage->lanes) == 0);
    stage->ends = false;
    iou_records_want(stage->lanes, 0); /* nobody reads them: most are lost */
    CHECK(pthread_create(&other, NULL, fill_gaps, queue) == 0);
    serve(connections, false);
    stage->ends = true;
    CHECK(pthread_join(other, NULL) == 0);
    serve(LANES, true);
    CHECK(iou_lanes_free(stage->lanes) == -EBUSY);
    usleep((useconds_t)below(&stage->random, 50000));
    stop_engine(stage->engine);
    serve(0, false);
    CHECK(stage->lanes->pool.used == stage->lanes->pool.kept_size && !stage->lanes->pool.long_taken &&
          stage->lanes->pool.tasks == 0);
    CHECK(iou_lanes_free(stage->lanes) == 0);
    stop_engine(stage->engine);
    CHECK(iou_queue_free(queue) == 0 && iou_queue_free(stage->queue) == 0 && iou_engine_free(stage->engine) == 0);
}

/* Nothing was lost, and nothing came later. */
static void check_content(const struct session *session) {
    iou_completion completion;
    CHECK(iou_execute(NULL, IOU_OPEN, 0, 0, 0, (void *)session->path, 0, NULL, &completion) == 0);
    iou_handle *handle = completion.handle;
    for (unsigned i = 0; i < AREAS; i++) {
        const struct area *area = &session->client.areas[i];
        char *data = calloc(1, area->length);
        CHECK(data);
        int error = iou_execute(handle, IOU_READ, 0, area->offset, area->length, data, area->length, NULL, &completion);
        CHECK(error == 0 || error == -ENODATA); /* the image ends before */
        CHECK(area_holds(area, data));
        free(data);
    }
    CHECK(iou_execute(handle, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL, &completion) == 0);
}

static void print_counts(void) {
    uint64_t replies[COMMANDS + 1] = {0}, failed = 0, shut_down = 0, sum = 0, served = 0, reports = 0, ranges = 0;
    for (unsigned i = 0; i < LANES; i++) {
        const struct session *session = &stage->sessions[i];
        const struct lane_client *client = &session->client;
        served += session->served;
        reports += session->reports;
        ranges += session->ranges;
        for (unsigned command = 0; command <= COMMANDS; command++) {
            replies[command] += client->replies[command];
            sum += client->replies[command];
        }
        failed += client->failed;
        shut_down += client->shut_down;
    }
    printf("lanes: %llu connections, %llu replies\n ", (unsigned long long)served, (unsigned long long)sum);
    static const char *const NAMES[] = {"read", "write", "disc", "flush", "trim", "cache", "zero", "status", "unknown"};
    for (unsigned command = 0; command <= COMMANDS; command++)
        printf(" %s %llu", NAMES[command], (unsigned long long)replies[command]);
    printf("; failed %llu, shut down %llu, reports %llu, ranges %llu\n", (unsigned long long)failed,
           (unsigned long long)shut_down, (unsigned long long)reports, (unsigned long long)ranges);
}

/* What is in memory is another device. */
static void make_images(void) {
    stage->memory_fd = memfd_create("lanes", MFD_CLOEXEC);
    CHECK(stage->memory_fd != -1);
    file_path(stage->paths[0], sizeof(stage->paths[0]), "lanes", 0);
    make_file(stage->paths[0], 0);
    snprintf(stage->paths[1], sizeof(stage->paths[1]), "/proc/self/fd/%d", stage->memory_fd);
}

static void lay_out(uint64_t seed) {
    uint64_t ends[IMAGES] = {100, 100};
    for (unsigned i = 0; i < LANES; i++) {
        struct session *session = &stage->sessions[i];
        session->path = stage->paths[i % IMAGES];
        session->random = (seed + 100 * i) | 1;
        session->gap = client_lay_out(&session->client, ends[i % IMAGES], seed + 2 * i);
        ends[i % IMAGES] = session->gap + GAP;
    }
}

void test_lanes(unsigned connections, uint64_t seed) {
    unsigned descriptors = count_descriptors();
    stage = calloc(1, sizeof(*stage));
    CHECK(stage);
    stage->random = seed | 1;
    make_images();
    lay_out(seed);
    iou_set_syscalls(&bad_syscalls);
    for (unsigned left = connections, count; left; left -= count) {
        count = (unsigned)min_u64(left, PER_ENGINE);
        use_engine(count);
    }
    iou_set_syscalls(NULL);
    for (unsigned i = 0; i < LANES; i++)
        check_content(&stage->sessions[i]);
    close(stage->memory_fd);
    CHECK(count_descriptors() == descriptors);
    print_counts();
    free(stage);
}
