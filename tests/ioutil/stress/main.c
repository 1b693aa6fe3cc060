/* SPDX-License-Identifier: Apache-2.0 */

/* stress DIRECTORY OPERATIONS [SEED] */

#include "stress.h"

#include <sys/wait.h>

static void test_fork(void) {
    iou_engine *engine;
    iou_queue *queue = NULL;
    int status;
    CHECK(iou_engine_new(4, 50, &engine) == 0 && iou_queue_new(engine, &queue) == 0);
    char path[4096];
    file_path(path, sizeof(path), "fork", 0);
    make_file(path, 1);
    iou_handle *handle = open_image(queue, path, IOU_WRITABLE);
    pid_t child = fork();
    if (child == 0) {
        iou_completion completion;
        bool refused = iou_submit(queue, 0, handle, IOU_STAT, 0, 0, 0, NULL, 0, NULL) == -ECHILD &&
                       iou_submit_open(queue, 0, path, 0, NULL) == -ECHILD && iou_engine_stop(engine, 0) == -ECHILD &&
                       iou_execute(handle, IOU_STAT, 0, 0, 0, NULL, 0, NULL, &completion) == -ECHILD;
        _exit(refused && iou_execute(NULL, IOU_OPEN, 0, 0, 0, path, 0, NULL, &completion) == 0 ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    close_image(queue, handle);
    stop_engine(engine);
    CHECK(iou_queue_free(queue) == 0 && iou_engine_free(engine) == 0);
    printf("fork: refused in the child\n");
}

static void test_is_zero(void) {
    static char buffer[5000];
    for (unsigned start = 0; start < 20; start++)
        for (unsigned length = 0; length < 4000; length += 37) {
            CHECK(iou_is_zero(buffer + start, length));
            if (length == 0)
                continue;
            buffer[start + length - 1] = 1;
            CHECK(!iou_is_zero(buffer + start, length) && iou_is_zero(buffer + start, length - 1));
            buffer[start + length - 1] = 0;
        }
    printf("is_zero: all alignments\n");
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s DIRECTORY OPERATIONS [SEED]\n", argv[0]);
        return 2;
    }
    snprintf(directory, sizeof(directory), "%s", argv[1]);
    uint64_t operations = strtoull(argv[2], NULL, 10);
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) | 1 : 88172645463325253u;
    unsigned rounds = (unsigned)(operations / 2000) + 5;
    setvbuf(stdout, NULL, _IOLBF, 0);
    test_is_zero();
    test_fork();
    test_execute();
    test_overlap();
    test_content("direct", operations / 2, seed, false);
    test_content("mixed", operations / 4, seed + 2, true);
    test_rough_storage(operations / 4, seed + 4);
    test_cancel(rounds, seed + 6);
    test_stop(rounds, seed + 8);
    test_hash(rounds, seed + 18);
    test_durable(rounds, seed + 20);
    test_counts();
    test_lanes((unsigned)(operations < 30000 ? operations / 100 : 300) + 20, seed + 10);
    test_http(rounds, seed + 12);
    test_records((unsigned)operations, seed + 14);
    test_qcow2(operations, seed + 22);
    test_remote_lanes((unsigned)(operations < 30000 ? operations / 150 : 200) + 20, seed + 16);
    test_nbd_client((unsigned)(operations < 30000 ? operations / 500 : 60) + 10, seed + 22);
    return 0;
}
