/* SPDX-License-Identifier: Apache-2.0 */

/* Writers of one block, each in its own thread. */

#include "stress.h"

/* Callers' threads take part in admission too. */
static void *execute_writes(void *argument) {
    iou_handle *handle = argument;
    iou_completion completion;
    char buffer[300] = {1};
    for (uint64_t i = 0; i < 300; i++)
        CHECK(iou_execute(handle, i % 5 ? IOU_WRITE : IOU_ZERO, 0, i * 37, sizeof(buffer), buffer, sizeof(buffer), NULL,
                          &completion) == 0);
    return NULL;
}

void test_execute(void) {
    char path[4096];
    iou_completion completion;
    pthread_t threads[4];
    file_path(path, sizeof(path), "execute", 0);
    make_file(path, 0);
    CHECK(iou_execute(NULL, IOU_OPEN, IOU_WRITABLE, 0, 0, path, 0, NULL, &completion) == 0);
    iou_handle *handle = completion.handle;
    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, execute_writes, handle) == 0);
    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(iou_handle_generation(handle) != 0);
    CHECK(iou_execute(handle, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL, &completion) == 0);
    printf("execute: 1200 operations\n");
}

/* What the edges of a block are: nothing but a head, nothing but a tail, both. */
static const struct {
    uint64_t start, end;
} PARTS[] = {{100, 512}, {512, 900}, {1100, 1200}};

struct overlap {
    iou_handle *handle;
    atomic_bool ended;
};

static void *write_parts(void *argument) {
    struct overlap *overlap = argument;
    iou_completion completion;
    char buffer[512];
    memset(buffer, 0xff, sizeof(buffer));
    for (unsigned i = 0; !overlap->ended; i++) {
        uint64_t start = PARTS[i % 3].start, length = PARTS[i % 3].end - start;
        CHECK(iou_execute(overlap->handle, IOU_WRITE, 0, start, length, buffer, length, NULL, &completion) == 0);
    }
    return NULL;
}

/* Wait between the read and the write of an edge, where an aligned write must not get in. */
static ssize_t slow_pread(int fd, void *buffer, size_t length, int64_t offset) {
    ssize_t count = pread(fd, buffer, length, offset);
    usleep(100);
    return count;
}

static void check_parts(const char *block, char value) {
    for (uint64_t i = 0, part = 0; i < 4096; i++) {
        if (part < 3 && i == PARTS[part].start)
            i = PARTS[part++].end - 1;
        else
            CHECK(block[i] == value);
    }
}

/* Aligned writes of a block against small ones inside it: what the small ones do not cover is never old. */
void test_overlap(void) {
    const iou_syscalls slow = {.pread = slow_pread};
    struct overlap overlap = {0};
    char path[4096], *block = NULL;
    iou_completion completion;
    pthread_t thread;
    file_path(path, sizeof(path), "overlap", 0);
    make_file(path, 8192);
    iou_set_syscalls(&slow);
    CHECK(posix_memalign((void **)&block, 4096, 4096) == 0);
    CHECK(iou_execute(NULL, IOU_OPEN, IOU_WRITABLE, 0, 0, path, 0, NULL, &completion) == 0);
    overlap.handle = completion.handle;
    CHECK(pthread_create(&thread, NULL, write_parts, &overlap) == 0);
    for (unsigned i = 1; i < 500; i++) {
        memset(block, (char)(i % 100), 4096);
        CHECK(iou_execute(overlap.handle, IOU_WRITE, 0, 0, 4096, block, 4096, NULL, &completion) == 0);
        usleep((useconds_t)(i % 8 * 50));
        CHECK(iou_execute(overlap.handle, IOU_READ, 0, 0, 4096, block, 4096, NULL, &completion) == 0);
        check_parts(block, (char)(i % 100));
    }
    overlap.ended = true;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(iou_execute(overlap.handle, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL, &completion) == 0);
    iou_set_syscalls(NULL);
    free(block);
    printf("overlap: 499 aligned writes against small ones\n");
}
