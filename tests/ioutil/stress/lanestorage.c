/* SPDX-License-Identifier: Apache-2.0 */

/* Storage that lanes are tried on. */

#include "laneclient.h"

static atomic_uint_fast64_t frozen_until;

/* Longer than the watcher waits: one call seldom, all that come meanwhile still more seldom. */
static void hang(void) {
    if (chance(1000) == 0)
        usleep((useconds_t)chance(60000));
    if (chance(8000) == 0)
        frozen_until = now_ns() + chance(150) * 1000000;
    while (now_ns() < frozen_until)
        usleep(5000);
}

static bool breaks(void) {
    errno = EIO;
    return chance(1500) == 0;
}

static ssize_t bad_pread(int fd, void *buffer, size_t length, int64_t offset) {
    hang();
    return breaks() ? -1 : rough_syscalls.pread(fd, buffer, length, offset);
}

static ssize_t bad_pwrite(int fd, const void *buffer, size_t length, int64_t offset) {
    hang();
    return breaks() ? -1 : rough_syscalls.pwrite(fd, buffer, length, offset);
}

static int slow_fallocate(int fd, int mode, int64_t offset, int64_t length) {
    hang();
    return rough_syscalls.fallocate(fd, mode, offset, length);
}

static int64_t slow_lseek(int fd, int64_t offset, int whence) {
    hang();
    return lseek(fd, offset, whence);
}

/* What a flush means is not looked at here. */
static int slow_fdatasync(int fd) {
    (void)fd;
    usleep((useconds_t)chance(3000));
    return 0;
}

static int rough_ftruncate(int fd, int64_t size) {
    return rough_syscalls.ftruncate(fd, size);
}

const iou_syscalls bad_syscalls = {
    .pread = bad_pread,
    .pwrite = bad_pwrite,
    .fallocate = slow_fallocate,
    .ftruncate = rough_ftruncate,
    .fdatasync = slow_fdatasync,
    .lseek = slow_lseek,
};
