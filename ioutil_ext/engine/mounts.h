/* SPDX-License-Identifier: Apache-2.0 */

/* On which device a path lies (mounts.c). */

#ifndef IOUTIL_ENGINE_MOUNTS_H
#define IOUTIL_ENGINE_MOUNTS_H

#include <stdint.h>

/* The device id that opens of this path are counted for. */
uint64_t mount_device(const char *path);

#endif
