/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Asynchronous reads and writes of fibers, by Linux AIO (aio.c): the fiber sleeps, and the calls of a round are
 * submitted together. Only for descriptors with O_DIRECT: the kernel does others at once, in the caller's time.
 */

#ifndef IOUTIL_BASE_AIO_H
#define IOUTIL_BASE_AIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/loop.h"

/* Whether a fiber runs in this thread and can use asynchronous I/O. If the kernel refuses it, its loop goes on without.
 */
bool aio_is_possible(void);

/* Return 0 if this process can use it now, or the -errno of io_setup(2). */
int aio_probe(void);

/* As pread(2) and pwrite(2), for a fiber for which aio_is_possible(). -errno. The memory is in use until they return.
   -ENOTSUP: it was not begun, and another way has to be tried. */
ssize_t aio_pread(int fd, void *memory, size_t length, uint64_t offset);
ssize_t aio_pwrite(int fd, const void *memory, size_t length, uint64_t offset);

#endif
