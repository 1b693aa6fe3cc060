/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How much lanes give a device to do at a time. What is more than it needs to be busy only makes everything take
 * longer, and if it all ends at once, nothing can be sent or received meanwhile: on a virtio disk 64 reads of nbdcopy,
 * 256 KiB each, began together and ended together 5.5 ms later. So long reads and writes wait here for those before
 * them, in the order in which they came.
 */

#include "lane_depth.h"

/*
 * Enough to keep a fast disk busy: 512 MiB by a C program took 0.20 s in reads of 256 KiB, 16 at a time, 0.19 s with
 * 32, 0.22 with 4; 0.18 in one read of 2 MiB at a time.
 */
#define DEPTH (4 * MIB)

/* What is shorter neither waits nor counts: of such, storage needs many at a time. */
#define SHORT (64 * KIB)

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

void depth_init(struct depth *depth) {
    *depth = (struct depth){0};
    pthread_mutex_init(&depth->lock, NULL);
    link_init(&depth->waiters);
}

void depth_destroy(struct depth *depth) {
    pthread_mutex_destroy(&depth->lock);
}

/* What is longer than a piece comes one at a time, and FUA takes as long as a flush does: neither tells of the device.
 */
bool depth_counts(const struct iou_lane *lane, const struct op *op) {
    return (op->kind == IOU_READ || op->kind == IOU_WRITE) && op->length > SHORT && op->length <= LANE_PIECE &&
           !(op->flags & IOU_FUA) && !operation_is_quick(lane, op->kind);
}

/* ---- the lock is held ------------------------------------------------------------------------------------------- */

static bool admits(const struct depth *depth, uint64_t length) {
    return depth->used + length <= DEPTH || now_ns() < depth->unlimited_until;
}

static void begin(struct depth *depth, struct depth_use *use) {
    depth->used += use->length;
    use->epoch = depth->epoch;
}

static void admit(struct depth *depth, struct link *admitted) {
    link_init(admitted);
    while (!link_empty(&depth->waiters)) {
        struct depth_use *use = container_of(depth->waiters.next, struct depth_use, waiter.link);
        if (!admits(depth, use->length))
            break;
        begin(depth, use);
        waiter_serve(&use->waiter, admitted);
    }
}

/* Note how long it took. What began without the limit tells nothing: it takes longer for that. */
static void note(struct depth *depth, const struct depth_use *use) {
    uint64_t now = now_ns();
    if (use->since < depth->unlimited_until)
        return;
    depth->mean_ns = (depth->mean_ns * (MEAN_WEIGHT - 1) + now - use->since) / MEAN_WEIGHT;
    if (depth->mean_ns > FAR_NS) {
        depth->unlimited_until = now + UNLIMITED_NS;
        depth->mean_ns = 0;
    }
}

/* ---- for operations --------------------------------------------------------------------------------------------- */

/* What is under way counts no more: others need not wait for what hangs. */
static void write_off(struct depth *depth) {
    struct link admitted;
    pthread_mutex_lock(&depth->lock);
    depth->epoch++;
    depth->used = 0;
    admit(depth, &admitted);
    pthread_mutex_unlock(&depth->lock);
    waiters_wake(&admitted);
}

void depth_enter(struct depth *depth, struct depth_use *use) {
    pthread_mutex_lock(&depth->lock);
    bool admitted = link_empty(&depth->waiters) && admits(depth, use->length);
    if (admitted)
        begin(depth, use);
    else
        waiter_join(&use->waiter, &depth->waiters);
    pthread_mutex_unlock(&depth->lock);
    while (!admitted && !(admitted = waiter_sleep(&use->waiter, now_ns() + PATIENCE_NS)))
        write_off(depth);
    use->since = now_ns();
}

void depth_leave(struct depth *depth, const struct depth_use *use) {
    struct link admitted;
    pthread_mutex_lock(&depth->lock);
    if (use->epoch == depth->epoch)
        depth->used -= use->length;
    note(depth, use);
    admit(depth, &admitted);
    pthread_mutex_unlock(&depth->lock);
    waiters_wake(&admitted);
}
