/* SPDX-License-Identifier: Apache-2.0 */

/* The limit on the bytes that lanes have under way on a device at a time (device_limit.c). */

#ifndef IOUTIL_LANE_DEVICE_LIMIT_H
#define IOUTIL_LANE_DEVICE_LIMIT_H

#include <pthread.h>
#include <stdint.h>

#include "lane/waiters.h"

struct device_limit {
    pthread_mutex_t lock; /* a leaf */
    struct link waiters;
    uint64_t used, epoch; /* bytes of the operations that run and began in this epoch */
    uint64_t mean_ns, unlimited_until;
};

/* The use of the limit by an operation of length bytes. */
struct limit_use {
    struct waiter waiter;
    uint64_t length, epoch, since;
};

void limit_init(struct device_limit *limit);
void limit_destroy(struct device_limit *limit);

/* Wait until an operation may begin, and end its use. */
void limit_enter(struct device_limit *limit, struct limit_use *use);
void limit_leave(struct device_limit *limit, const struct limit_use *use);

#endif
