/* SPDX-License-Identifier: Apache-2.0 */

/* The limit on the bytes that lanes have under way on a device at a time, and the share of each ticket
   (device_limit.c). */

#ifndef IOUTIL_QUOTA_DEVICE_LIMIT_H
#define IOUTIL_QUOTA_DEVICE_LIMIT_H

#include <pthread.h>
#include <stdint.h>

#include "api/lane.h"
#include "base/waiter.h"

struct device_limit {
    pthread_mutex_t lock; /* a leaf */
    struct link shares;   /* the shares of all tickets that have lanes on this device */
    struct link turns;    /* the shares that have waiters, in the order in which they are served */
    uint64_t used, epoch; /* bytes of the operations that run and began in this epoch */
    uint64_t mean_ns, unlimited_until;
    unsigned users;                   /* how many tickets have operations under way */
    const struct limit_share *paused; /* the share whose operations have ended last, and when */
    uint64_t paused_at;
    uint64_t moved_at; /* when an operation has ended last, or the oldest running one has begun */
};

/* The share of a ticket in the limit. */
struct limit_share {
    struct link link, turn;
    struct device_limit *limit;
    const iou_lease *ticket;
    unsigned lanes;
    struct link waiters;
    uint64_t used, epoch; /* as in struct device_limit */
    uint64_t moved_at;
};

/* The use of the limit by one operation of `length` bytes. */
struct limit_use {
    struct waiter waiter;
    uint64_t length, epoch, share_epoch, since;
};

void limit_init(struct device_limit *limit);
void limit_destroy(struct device_limit *limit);

/* A lane of a ticket joins the limit of its device, and leaves it by limit_part(). Returns NULL without memory. */
struct limit_share *limit_join(struct device_limit *limit, const iou_lease *ticket);
void limit_part(struct limit_share *share);

/* Wait until an operation may begin. limit_leave() ends its use of the limit. */
void limit_enter(struct limit_share *share, struct limit_use *use);
void limit_leave(struct limit_share *share, const struct limit_use *use);

#endif
