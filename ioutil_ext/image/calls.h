/* SPDX-License-Identifier: Apache-2.0 */

/* The calls that read and write an image (calls.c). */

#ifndef IOUTIL_IMAGE_CALLS_H
#define IOUTIL_IMAGE_CALLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "image/handle.h"

/* As sys_pread() and sys_pwrite(). fd: of the handle, or its tail_fd, which is not direct. */
ssize_t call_pread(const struct op *op, void *memory, size_t length, uint64_t offset);
ssize_t call_pwrite(const struct op *op, int fd, const void *data, size_t length, uint64_t offset);

#endif
