/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Asynchronous reads and writes of fibers, by Linux AIO (aio.c): the fiber sleeps, and the calls of a round are
 * submitted together. Only for descriptors with O_DIRECT: for others, the kernel does the call synchronously.
 */

#ifndef IOUTIL_BASE_AIO_H
#define IOUTIL_BASE_AIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/loop.h"

/* Return whether this thread runs a fiber that can use asynchronous I/O. If the kernel refuses it, the fiber's loop
   works without it. */
bool aio_is_possible(void);

/* Return 0 if this process can use asynchronous I/O now, or the -errno of io_setup(2). */
int aio_probe(void);

/* Do as pread(2) and pwrite(2), in a fiber for which aio_is_possible(). The memory is in use until they return. Return
   the number of bytes or -errno. After -ENOTSUP nothing was begun, and the caller tries another way. */
ssize_t aio_pread(int fd, void *memory, size_t length, uint64_t offset);
ssize_t aio_pwrite(int fd, const void *memory, size_t length, uint64_t offset);

#endif
