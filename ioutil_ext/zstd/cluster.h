/* SPDX-License-Identifier: Apache-2.0 */

/* A cluster of an image that zstd has compressed (cluster.c). */

#ifndef IOUTIL_ZSTD_CLUSTER_H
#define IOUTIL_ZSTD_CLUSTER_H

#include <stddef.h>

/* Decode frames until exactly `size` bytes have come; what follows is not looked at. -EIO: it does not decode to so
   many; -ENOMEM. */
int zstd_decode_cluster(void *to, size_t size, const void *from, size_t length);

#endif
