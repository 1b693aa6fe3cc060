/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The limit on the bytes that lanes have under way on a device at a time. More than the device needs to be busy only
 * make each operation take longer. If they also end together, nothing can be sent or received meanwhile: on a virtio
 * disk, 64 reads of nbdcopy, 256 KiB each, began together and ended together 5.5 ms later. So long reads and writes
 * wait here for earlier ones, in order of arrival.
 */

#include <semaphore.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/device_limit.h"

/*
 * Bytes that keep a fast disk busy. A C program read 512 MiB in 0.20 s with 16 reads of 256 KiB at a time, in 0.19 s
 * with 32, in 0.22 s with 4, and in 0.18 s with one read of 2 MiB at a time.
 */
#define DEPTH (4 * MIB)

/*
 * A device whose mean duration is longer does less than 1.4 GB/s: it is remote, or slow anyway. It has no limit for a
 * while, and is measured again afterwards.
 */
#define FAR_NS UINT64_C(3000000)
#define UNLIMITED_NS UINT64_C(1000000000)

/* After a wait of so long, operations under way seem to hang, and do not count any more. */
#define PATIENCE_NS UINT64_C(100000000)

/* The weight of the moving mean: the latest durations count most. */
#define MEAN_WEIGHT 8u

void limit_init(struct device_limit *limit) {
    *limit = (struct device_limit){0};
    pthread_mutex_init(&limit->lock, NULL);
    link_init(&limit->waiters);
}

void limit_destroy(struct device_limit *limit) {
    pthread_mutex_destroy(&limit->lock);
}

/* ---- the lock is held ------------------------------------------------------------------------------------------- */

static bool admits(const struct device_limit *limit, uint64_t length) {
    return limit->used + length <= DEPTH || now_ns() < limit->unlimited_until;
}

static void begin(struct device_limit *limit, struct limit_use *use) {
    limit->used += use->length;
    use->epoch = limit->epoch;
}

static void admit(struct device_limit *limit, struct link *admitted) {
    link_init(admitted);
    while (!link_empty(&limit->waiters)) {
        struct limit_use *use = container_of(limit->waiters.next, struct limit_use, waiter.link);
        if (!admits(limit, use->length))
            break;
        begin(limit, use);
        waiter_serve(&use->waiter, admitted);
    }
}

/* Add a duration to the mean. Operations that began without the limit take longer, and do not count. */
static void note(struct device_limit *limit, const struct limit_use *use) {
    uint64_t now = now_ns();
    if (use->since < limit->unlimited_until)
        return;
    limit->mean_ns = (limit->mean_ns * (MEAN_WEIGHT - 1) + now - use->since) / MEAN_WEIGHT;
    if (limit->mean_ns > FAR_NS) {
        limit->unlimited_until = now + UNLIMITED_NS;
        limit->mean_ns = 0;
    }
}

/* ---- for operations --------------------------------------------------------------------------------------------- */

/* Stop counting the operations that run, so that others do not wait for those that hang. */
static void write_off(struct device_limit *limit) {
    struct link admitted;
    pthread_mutex_lock(&limit->lock);
    limit->epoch++;
    limit->used = 0;
    admit(limit, &admitted);
    pthread_mutex_unlock(&limit->lock);
    waiters_wake(&admitted);
}

void limit_enter(struct device_limit *limit, struct limit_use *use) {
    pthread_mutex_lock(&limit->lock);
    bool admitted = link_empty(&limit->waiters) && admits(limit, use->length);
    if (admitted)
        begin(limit, use);
    else
        waiter_join(&use->waiter, &limit->waiters);
    pthread_mutex_unlock(&limit->lock);
    while (!admitted && !(admitted = waiter_sleep(&use->waiter, now_ns() + PATIENCE_NS)))
        write_off(limit);
    use->since = now_ns();
}

void limit_leave(struct device_limit *limit, const struct limit_use *use) {
    struct link admitted;
    pthread_mutex_lock(&limit->lock);
    if (use->epoch == limit->epoch)
        limit->used -= use->length;
    note(limit, use);
    admit(limit, &admitted);
    pthread_mutex_unlock(&limit->lock);
    waiters_wake(&admitted);
}
