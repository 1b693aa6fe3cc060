/* SPDX-License-Identifier: Apache-2.0 */

/* The operations of a lane, which run in the thread of their request. */

#define _GNU_SOURCE
#include <errno.h>
#include <sys/resource.h>

#include "base/numbers.h"
#include "engine/external_threads.h"
#include "engine/running.h"
#include "lane/connection.h"
#include "lane/lane.h"
#include "lane/operations.h"

/*
 * An operation is quick if its kind has seldom slept in storage lately. The leader does quick operations itself: an
 * operation that only computes and copies is not done sooner by another thread, which has to be woken and has other
 * caches. docs/performance/experiments.md has the processor time of the server for nbdcopy out of tmpfs.
 */
#define SLEEPS_ALWAYS 1024u
#define SLEEPS_SELDOM (SLEEPS_ALWAYS / 2)
#define SLEEPS_WEIGHT 8u

/* Return how often this thread has slept. */
static long count_sleeps(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static void note_sleep(struct iou_lane *lane, uint32_t kind, bool slept) {
    atomic_uint_fast32_t *mean = &lane->sleeps[kind];
    *mean = (*mean * (SLEEPS_WEIGHT - 1) + (slept ? SLEEPS_ALWAYS : 0)) / SLEEPS_WEIGHT;
}

void operations_init(struct iou_lane *lane) {
    for (size_t kind = 0; kind < LENGTH(lane->sleeps); kind++)
        lane->sleeps[kind] = SLEEPS_ALWAYS;
    lane->sleeps[0] = 0; /* requests without an operation */
}

bool operation_is_quick(const struct iou_lane *lane, uint32_t kind) {
    return lane->sleeps[kind] < SLEEPS_SELDOM;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static bool is_counted(const struct iou_lane *lane, uint32_t kind) {
    if (kind == IOU_READ)
        return lane->flags & IOU_LANE_COUNT_READS;
    return (kind == IOU_WRITE || kind == IOU_ZERO || kind == IOU_TRIM) && lane->flags & IOU_LANE_COUNT_WRITES;
}

void operation_begin(struct iou_lane *lane, struct op *op) {
    op->handle = lane->handle;
    op->control = lane->control;
    op->buffer_size = op->buffer_size ? op->buffer_size : op->length;
    int error = op_check(op); /* finds nothing: the request was checked before */
    if (!error)
        error = op_claim(op);
    op->result.error = error == -EAGAIN ? 0 : -error;
    /* The bytes of the request may be old: its client may be gone, and may have sent newer requests elsewhere. The
       claim keeps newer changes behind this one. If the client was gone before the claim, the change does not begin. */
    if (op->claimed)
        lane_check(lane);
}

/* Shorter operations neither wait for their device nor count: storage needs many of them at a time. */
#define SHORT (64 * KIB)

/* Whether the limit of the device is for this operation. An operation longer than a piece runs alone, and one with FUA
   takes as long as a flush: the duration of neither says how busy the device is. A remote image has no device here. */
static bool is_limited(const struct iou_lane *lane, const struct op *op) {
    return (op->kind == IOU_READ || op->kind == IOU_WRITE) && op->length > SHORT && op->length <= LANE_PIECE &&
           !(op->flags & IOU_FUA) && !op->handle->ops->remote && !operation_is_quick(lane, op->kind);
}

bool operation_turn(struct lane_thread *thread, struct op *op) {
    struct iou_lane *lane = thread->lane;
    if (op->result.error)
        return true;
    struct limit_use use = {.length = op->length};
    thread->storage_since = work_wait(IOU_WAIT_TURN);
    op_await(op);
    bool counts = is_limited(lane, op);
    if (counts)
        limit_enter(lane->memory.share, &use);
    work_go_on(IOU_WAIT_TURN, thread->storage_since);
    uint64_t since = work_wait(IOU_WAIT_STORAGE);
    long sleeps = count_sleeps();
    bool ended = external_thread_turn(lane->engine, &thread->external, op);
    work_go_on(IOU_WAIT_STORAGE, since);
    note_sleep(lane, op->kind, op->handle->ops->remote || count_sleeps() != sleeps);
    thread->storage_since = 0;
    if (counts)
        limit_leave(lane->memory.share, &use);
    return ended;
}

int operation_end(struct iou_lane *lane, struct op *op) {
    if (op->result.done && is_counted(lane, op->kind))
        counts_add(lane, op->offset, op->offset + op->result.done);
    if (op->kind == IOU_READ)
        lane->counts.read += op->result.done;
    if (op->kind == IOU_WRITE)
        lane->counts.written += op->result.done;
    if (op->kind == IOU_ZERO && !op->result.error)
        lane->counts.zeroed[op->result.method] += op->length;
    return op->result.error;
}

int operation_run(struct lane_thread *thread, struct op *op) {
    if (!op->handle)
        operation_begin(thread->lane, op);
    while (!operation_turn(thread, op))
        ;
    return operation_end(thread->lane, op);
}
