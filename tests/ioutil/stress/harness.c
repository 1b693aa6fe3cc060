/* SPDX-License-Identifier: Apache-2.0 */

#include "stress.h"

#include <fcntl.h>
#include <poll.h>

void check(bool condition, const char *text, const char *file, int line) {
    if (condition)
        return;
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
    abort();
}

uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

uint64_t below(uint64_t *state, uint64_t limit) {
    return next_random(state) % limit;
}

char directory[4000];

void file_path(char *path, size_t size, const char *name, unsigned number) {
    snprintf(path, size, "%s/%s-%u", directory, name, number);
}

void make_file(const char *path, off_t size) {
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, size) == 0 && close(fd) == 0);
}

uint32_t reap(iou_queue *queue, iou_completion *completions, uint32_t max) {
    struct pollfd fd = {.fd = iou_queue_fd(queue), .events = POLLIN};
    CHECK(poll(&fd, 1, DEADLINE_MS) == 1);
    int count = iou_reap(queue, completions, max);
    CHECK(count >= 0);
    return (uint32_t)count;
}

iou_completion reap_one(iou_queue *queue) {
    iou_completion completion;
    CHECK(reap(queue, &completion, 1) == 1);
    return completion;
}

iou_handle *open_image(iou_queue *queue, const char *path, uint32_t flags) {
    CHECK(iou_submit_open(queue, 1, path, flags, NULL) == 0);
    iou_completion completion = reap_one(queue);
    CHECK(completion.error == 0 && completion.handle);
    return completion.handle;
}

void close_image(iou_queue *queue, iou_handle *handle) {
    CHECK(iou_submit(queue, 2, handle, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL) == 0);
    CHECK(reap_one(queue).error == 0);
}

void stop_engine(iou_engine *engine) {
    CHECK(iou_engine_stop(engine, DEADLINE_MS) == 0);
}
