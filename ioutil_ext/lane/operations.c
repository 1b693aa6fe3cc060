/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The operations of a lane. A task runs an operation itself if that does not block the thread, which all tasks share:
 * direct I/O is asynchronous, and files in memory are only copied. Other operations go to a worker of the engine, also
 * those that have to wait for the storage of the journal of durable ranges.
 */

#define _GNU_SOURCE
#include <errno.h>

#include "base/numbers.h"
#include "engine/engine.h"
#include "engine/running.h"
#include "lane/lane.h"
#include "lane/operations.h"
#include "quota/pool.h"

/*
 * Most bytes of a turn of a WRITE if storage only copies. In between, the leader receives: a socket holds 208 KiB, and
 * a client whose socket is full sleeps. Measured with nbdcopy of 512 MiB into tmpfs, requests of 256 KiB, 15 rounds. 1
 * connection: 288 ms with whole requests, 230 with 64 KiB; in another run 178, 194 and 206 with 32, 64 and 128 KiB. 4
 * connections: 211 with whole requests, 206 with 64 KiB; in the other run 187, 189 and 196.
 */
#define COPIED (64 * KIB)

/* ---- running ---------------------------------------------------------------------------------------------------- */

static bool is_counted(const struct iou_lane *lane, uint32_t kind) {
    if (kind == IOU_READ)
        return lane->flags & IOU_LANE_COUNT_READS;
    return (kind == IOU_WRITE || kind == IOU_ZERO || kind == IOU_TRIM) && lane->flags & IOU_LANE_COUNT_WRITES;
}

void operation_begin(struct iou_lane *lane, struct op *op) {
    op->handle = lane->handle;
    op->owner = lane;
    op->control = lane->control;
    op->buffer_size = op->buffer_size ? op->buffer_size : op->length;
    op->most = operation_only_copies(lane) ? COPIED : 0;
    int error = op_check(op); /* always 0: the request was checked before */
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

/* Whether the limit of the device applies to this operation. An operation longer than a piece runs alone, and one with
   FUA takes as long as a flush, so their durations do not show how busy the device is. A remote image has no device
   here. */
static bool is_limited(const struct iou_lane *lane, const struct op *op) {
    return (op->kind == IOU_READ || op->kind == IOU_WRITE) && op->length > SHORT && op->length <= MEMORY_PIECE &&
           !(op->flags & IOU_FUA) && !op->handle->ops->remote && !operation_only_copies(lane);
}

bool operation_only_copies(const struct iou_lane *lane) {
    return lane->handle->image->in_memory;
}

/*
 * Whether the thread of the lane runs the operation. A direct read takes processor time for each byte, while the thread
 * has earlier bytes to send. So longer reads of a stream go to workers. Their rate relative to reads by the thread:
 * nbdcopy of a file on disk 1.22, GET of 64 MiB with TLS 1.23. The rate of the thread relative to workers: writes 1.09,
 * copies out of memory 1.1 to 1.7.
 */
static bool is_prompt(const struct iou_lane *lane, const struct op *op) {
    bool streams = op->kind == IOU_READ && op->length > SHORT && !op->alone;
    return (!streams || op->handle->ops->remote || operation_only_copies(lane)) && op->handle->ops->is_prompt(op);
}

/* Run the operation for a turn, or to its end. True: it has ended. An operation that is alone blocks the thread, so the
   answers to earlier requests are sent first. */
static bool run_operation(struct iou_lane *lane, struct op *op) {
    if (op->alone)
        lane_flush(lane);
    if (op_canceled(op) || is_prompt(lane, op)) {
        bool ended = own_thread_turn(lane->engine, op);
        if (!op->needs_worker)
            return ended;
    }
    workers_run(lane->engine, op);
    return true;
}

/* Run the operation for a turn. May wait for other operations first. True: it has ended. */
static bool operation_turn(struct task *task, struct op *op) {
    struct iou_lane *lane = task->lane;
    if (op->result.error)
        return true;
    struct limit_use use = {.length = op->length};
    task->storage_since = work_wait(IOU_WAIT_TURN);
    op_await(op);
    bool counts = is_limited(lane, op);
    if (counts)
        limit_enter(lane->memory.share, &use);
    work_go_on(IOU_WAIT_TURN, task->storage_since);
    uint64_t since = work_wait(IOU_WAIT_STORAGE);
    bool ended = run_operation(lane, op);
    work_go_on(IOU_WAIT_STORAGE, since);
    task->storage_since = 0;
    if (counts)
        limit_leave(lane->memory.share, &use);
    return ended;
}

/* Count an operation that has ended. Returns its errno. */
static int operation_end(struct iou_lane *lane, struct op *op) {
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

int operation_run(struct task *task, struct op *op) {
    if (!op->handle)
        operation_begin(task->lane, op);
    while (!operation_turn(task, op))
        fiber_yield();
    return operation_end(task->lane, op);
}
