/* SPDX-License-Identifier: Apache-2.0 */

/* Doing requests: operations on the image, and the reply at their end. */

#include "nbd/nbd.h"

/*
 * Most bytes of a turn of a WRITE if storage does not sleep. Measured with nbdcopy of 512 MiB into tmpfs, requests of
 * 256 KiB, 15 rounds. 1 connection: 288 ms with whole requests, 230 with 64 KiB; in another run 178, 194 and 206 with
 * 32, 64 and 128 KiB. 4 connections: 211 with whole requests, 206 with 64 KiB; in the other run 187, 189 and 196.
 */
#define QUICK_WRITE (64 * KIB)

static uint32_t kind_of(const struct request *request) {
    static const uint32_t KINDS[COMMANDS] = {
        [CMD_READ] = IOU_READ, [CMD_WRITE] = IOU_WRITE,       [CMD_FLUSH] = IOU_FLUSH,
        [CMD_TRIM] = IOU_TRIM, [CMD_WRITE_ZEROES] = IOU_ZERO, [CMD_BLOCK_STATUS] = IOU_EXTENTS,
    };
    return KINDS[request->command];
}

bool request_is_quick(struct iou_lane *lane, const struct request *request) {
    if (request->error || request->length > LANE_PIECE)
        return request->error != 0;
    if (request->flags & FLAG_FUA && request->command != CMD_READ && !operation_is_quick(lane, IOU_FLUSH))
        return false;
    return operation_is_quick(lane, kind_of(request));
}

/* ---- replies ---------------------------------------------------------------------------------------------------- */

static void reply(struct iou_lane *lane, const struct request *request, struct answer answer) {
    if (answer.error)
        reply_error(lane, request, answer.error, answer.text);
    else
        reply_success(lane, request);
}

/* ---- WRITE ------------------------------------------------------------------------------------------------------ */

/*
 * Return the bytes of the next part of a write; 0: all that is left. Between two parts the leader receives bytes of the
 * next request, so that the client need not sleep. Other threads do not, and if storage has begun to sleep, the watcher
 * has to replace the leader.
 */
static uint64_t next_part(const struct iou_lane *lane, const struct op *op, bool leads) {
    return leads && operation_is_quick(lane, IOU_WRITE) ? QUICK_WRITE - op_position(op) % PAGE_UNIT : 0;
}

static struct answer write_parts(struct lane_thread *thread, struct op *op, bool leads) {
    struct iou_lane *lane = thread->lane;
    op->most = next_part(lane, op, leads);
    while (!operation_turn(thread, op)) {
        if (leads && (leads = turn_end(thread))) {
            receive_ahead(lane);
            turn_begin(thread);
        }
        op->most = next_part(lane, op, leads);
    }
    operation_end(lane, op);
    return answer_of(lane, op);
}

/* Write the payload, unless it has an error already, and answer. */
static void end_payload(struct lane_thread *thread, const struct request *request, struct payload *payload,
                        struct op *op, bool leads) {
    struct iou_lane *lane = thread->lane;
    if (op->kind)
        payload->answer = write_parts(thread, op, leads);
    if (payload->memory)
        memory_put(lane, payload->memory);
    reply(lane, request, payload->answer);
}

/* ---- the others ------------------------------------------------------------------------------------------------- */

static uint32_t zero_flags(const struct iou_lane *lane, const struct request *request) {
    bool keep = request->flags & FLAG_NO_HOLE || !(lane->flags & IOU_LANE_SPARSE);
    return (keep ? IOU_ALLOCATE : 0) | (request->flags & FLAG_FAST_ZERO ? IOU_FAST_ONLY : 0);
}

static struct answer run_flush(struct lane_thread *thread) {
    struct op op = {.kind = IOU_FLUSH};
    return answer_run(thread, &op);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

/* Whether the request changes nothing: an empty range, or a TRIM if the ticket is not sparse and keeps its storage. */
static bool changes_nothing(const struct iou_lane *lane, const struct request *request) {
    return request->length == 0 || (request->command == CMD_TRIM && !(lane->flags & IOU_LANE_SPARSE));
}

static void set_change(struct op *op, const struct iou_lane *lane, const struct request *request) {
    bool zeroes = request->command == CMD_WRITE_ZEROES;
    *op = (struct op){
        .kind = zeroes ? IOU_ZERO : IOU_TRIM,
        .flags = (request->flags & FLAG_FUA ? IOU_FUA : 0) | (zeroes ? zero_flags(lane, request) : 0),
        .offset = request->offset,
        .length = request->length,
    };
}

void request_begin(struct iou_lane *lane, const struct request *request, struct payload *payload, struct op *op) {
    op->kind = 0;
    if (request->error)
        return;
    answer_check(lane, &payload->answer);
    if (payload->answer.error)
        return;
    if (payload->memory)
        write_set(op, payload, request->flags & FLAG_FUA);
    else if ((request->command == CMD_WRITE_ZEROES || request->command == CMD_TRIM) && !changes_nothing(lane, request))
        set_change(op, lane, request);
    if (op->kind)
        operation_begin(lane, op);
}

static void run_allowed(struct lane_thread *thread, const struct request *request, struct op *op) {
    struct iou_lane *lane = thread->lane;
    if (request->command == CMD_FLUSH)
        reply(lane, request, run_flush(thread));
    else if (request->command == CMD_CACHE || request->length == 0)
        reply_success(lane, request); /* CACHE: images are read past the page cache, so there is nothing to fill */
    else if (request->command == CMD_READ)
        read_run(thread, request);
    else if (op->kind)
        reply(lane, request, answer_run(thread, op));
    else if (request->command == CMD_TRIM)
        reply(lane, request, request->flags & FLAG_FUA ? run_flush(thread) : (struct answer){0, NULL});
    else
        read_status(thread, request);
}

void request_run(struct lane_thread *thread, const struct request *request, struct payload *payload, struct op *op,
                 bool leads) {
    if (request->error)
        reply_error(thread->lane, request, request->error, request->text);
    else if (payload->memory || payload->answer.error)
        end_payload(thread, request, payload, op, leads);
    else
        run_allowed(thread, request, op);
}
