/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Loaded before a program by LD_PRELOAD: calls that change a file wait as a test wants; see heldcalls.py.
 *
 * If there is a file PATH.hold, the first such call on PATH renames it to PATH.held and waits until that is gone. With
 * IMAGEIO_TEST_ZERO_RATE in the environment, zeroing takes as long as if it were done at so many MiB a second. With
 * IMAGEIO_TEST_NO_HOLES, the kernel has no fast way to zero a part of a file. With IMAGEIO_TEST_CLOSED=PATH, a lane of
 * NBD that has closed its socket waits like a call on PATH.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void hold_at(const char *path) {
    char wanted[PATH_MAX + 8], held[PATH_MAX + 8];
    snprintf(wanted, sizeof(wanted), "%s.hold", path);
    snprintf(held, sizeof(held), "%s.held", path);
    if (rename(wanted, held))
        return;
    while (access(held, F_OK) == 0)
        usleep(1000);
}

static void hold(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    if (length < 0)
        return;
    path[length] = 0;
    hold_at(path);
}

int close(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "close");
    const char *path = getenv("IMAGEIO_TEST_CLOSED");
    char name[16] = "";
    int result = real(fd);
    if (path && prctl(PR_GET_NAME, name) == 0 && strcmp(name, "nbd-lane") == 0)
        hold_at(path);
    return result;
}

static void take_time(off64_t length) {
    const char *rate = getenv("IMAGEIO_TEST_ZERO_RATE");
    if (rate)
        usleep((useconds_t)((double)length / (1 << 20) / atof(rate) * 1e6));
}

#define REPLACE(name, parameters, arguments)                                                                           \
    ssize_t name parameters {                                                                                          \
        ssize_t(*real) parameters = (ssize_t(*) parameters)dlsym(RTLD_NEXT, #name);                                    \
        hold(fd);                                                                                                      \
        return real arguments;                                                                                         \
    }

REPLACE(pwrite, (int fd, const void *data, size_t length, off_t offset), (fd, data, length, offset))
REPLACE(pwrite64, (int fd, const void *data, size_t length, off64_t offset), (fd, data, length, offset))
REPLACE(pwritev, (int fd, const struct iovec *parts, int count, off_t offset), (fd, parts, count, offset))
REPLACE(pwritev64, (int fd, const struct iovec *parts, int count, off64_t offset), (fd, parts, count, offset))

#define REPLACE_FALLOCATE(name, type)                                                                                  \
    int name(int fd, int mode, type offset, type length) {                                                             \
        int (*real)(int, int, type, type) = (int (*)(int, int, type, type))dlsym(RTLD_NEXT, #name);                    \
        hold(fd);                                                                                                      \
        take_time(length);                                                                                             \
        if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) && getenv("IMAGEIO_TEST_NO_HOLES")) {                 \
            errno = EOPNOTSUPP;                                                                                        \
            return -1;                                                                                                 \
        }                                                                                                              \
        return real(fd, mode, offset, length);                                                                         \
    }

REPLACE_FALLOCATE(fallocate, off_t)
REPLACE_FALLOCATE(fallocate64, off64_t)

/* Writes that are asynchronous wait before they begin. */
long syscall(long number, ...) {
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"), a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    for (long i = 0; number == SYS_io_submit && i < a[1]; i++) {
        const struct iocb *call = ((struct iocb **)a[2])[i];
        if (call->aio_lio_opcode == IOCB_CMD_PWRITE)
            hold((int)call->aio_fildes);
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
