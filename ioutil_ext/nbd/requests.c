/* SPDX-License-Identifier: Apache-2.0 */

/* Doing requests: operations on the image, and the reply at their end. */

#include "nbd/nbd.h"

/* ---- replies ---------------------------------------------------------------------------------------------------- */

static void reply(struct iou_lane *lane, const struct request *request, struct answer answer) {
    if (answer.error)
        reply_error(lane, request, answer.error, answer.text);
    else
        reply_success(lane, request);
}

/* ---- WRITE ------------------------------------------------------------------------------------------------------ */

/* Write the payload, unless it has an error already, and answer. */
static void end_payload(struct task *task, const struct request *request, struct payload *payload, struct op *op) {
    struct iou_lane *lane = task->lane;
    if (op->kind)
        payload->answer = answer_run(task, op);
    if (payload->memory)
        lane_put_memory(lane, payload->memory);
    reply(lane, request, payload->answer);
}

/* ---- the others ------------------------------------------------------------------------------------------------- */

static uint32_t zero_flags(const struct iou_lane *lane, const struct request *request) {
    bool keep = request->flags & FLAG_NO_HOLE || !(lane->flags & IOU_LANE_SPARSE);
    return (keep ? IOU_ALLOCATE : 0) | (request->flags & FLAG_FAST_ZERO ? IOU_FAST_ONLY : 0);
}

static struct answer run_flush(struct task *task) {
    struct op op = {.kind = IOU_FLUSH};
    return answer_run(task, &op);
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

static void run_allowed(struct task *task, const struct request *request, struct op *op) {
    struct iou_lane *lane = task->lane;
    if (request->command == CMD_FLUSH)
        reply(lane, request, run_flush(task));
    else if (request->command == CMD_CACHE || request->length == 0)
        reply_success(lane, request); /* CACHE: images are read past the page cache, so there is nothing to fill */
    else if (request->command == CMD_READ)
        read_run(task, request);
    else if (op->kind)
        reply(lane, request, answer_run(task, op));
    else if (request->command == CMD_TRIM)
        reply(lane, request, request->flags & FLAG_FUA ? run_flush(task) : (struct answer){0, NULL});
    else
        read_status(task, request);
}

void request_run(struct task *task, const struct request *request, struct payload *payload, struct op *op) {
    if (request->error)
        reply_error(task->lane, request, request->error, request->text);
    else if (payload->memory || payload->answer.error)
        end_payload(task, request, payload, op);
    else
        run_allowed(task, request, op);
}
