/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How much lanes give a device to do at a time. What is more than it needs to be busy only makes everything take
 * longer, and if it all ends at once, nothing can be sent or received meanwhile: on a virtio disk 64 reads of nbdcopy,
 * 256 KiB each, began together and ended together 5.5 ms later. So long reads and writes wait here for those before
 * them, in the order in which they came.
 */

#include <semaphore.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "lane/device_limit.h"

/*
 * Enough to keep a fast disk busy: 512 MiB by a C program took 0.20 s in reads of 256 KiB, 16 at a time, 0.19 s with
 * 32, 0.22 with 4; 0.18 in one read of 2 MiB at a time.
 */
#define DEPTH (4 * MIB)

/*
 * A device that takes longer for so little, on average, does less than 1.4 GB/s: it is far away, or slow anyway. It may
 * have all there is for a while, and is looked at again then.
 */
#define FAR_NS UINT64_C(3000000)
#define UNLIMITED_NS UINT64_C(1000000000)

/* What is still under way when somebody has waited so long for it seems to hang, and counts no more. */
#define PATIENCE_NS UINT64_C(100000000)

/* The latest durations count most. */
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

/* Note how long it took. What began without the limit tells nothing: it takes longer for that. */
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

/* What is under way counts no more: others need not wait for what hangs. */
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
