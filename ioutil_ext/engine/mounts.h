/* SPDX-License-Identifier: Apache-2.0 */

/* The devices of paths (mounts.c). */

#ifndef IOUTIL_ENGINE_MOUNTS_H
#define IOUTIL_ENGINE_MOUNTS_H

#include <stdint.h>

/* Return the device id of a path's mount, for which opens of the path count. Does not touch the mount. */
uint64_t mount_device(const char *path);

#endif
