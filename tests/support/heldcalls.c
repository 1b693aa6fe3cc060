/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Loaded before a program by LD_PRELOAD: calls that change a file wait as a test wants; see heldcalls.py.
 *
 * If there is a file PATH.hold, the first such call on PATH renames it to PATH.held and waits until that is gone. With
 * IMAGEIO_TEST_ZERO_RATE in the environment, zeroing takes as long as if it were done at so many MiB a second.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

static void hold(int fd) {
    char link[64], path[PATH_MAX], wanted[PATH_MAX + 8], held[PATH_MAX + 8];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    if (length < 0)
        return;
    path[length] = 0;
    snprintf(wanted, sizeof(wanted), "%s.hold", path);
    snprintf(held, sizeof(held), "%s.held", path);
    if (rename(wanted, held))
        return;
    while (access(held, F_OK) == 0)
        usleep(1000);
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
        return real(fd, mode, offset, length);                                                                         \
    }

REPLACE_FALLOCATE(fallocate, off_t)
REPLACE_FALLOCATE(fallocate64, off64_t)
