/* SPDX-License-Identifier: Apache-2.0 */

/* The end of a request: its failure, the unread rest of its body, its answer and its record. */

#include <errno.h>

#include "http/http.h"

/* ---- failures --------------------------------------------------------------------------------------------------- */

void http_note_failure(struct http *http, iou_http_reason reason, const struct op *op) {
    pthread_mutex_lock(&http->lock);
    if (!http->failed) {
        http->end = (iou_http_end){.reason = (uint32_t)reason, .asks = http->request.asks};
        if (reason == IOU_HTTP_ENCODING)
            http->end.refusal = (uint32_t)http->body.refusal;
        if (op) {
            http->end.error = op->result.error;
            http->end.syscall = op->result.syscall;
            http->end.kind = op->kind;
            http->end.flags = op->flags;
            http->end.offset = op->offset;
            http->end.length = op->length;
            http->end.size = op->result.size;
        }
        http->failed = true;
    }
    pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock);
}

void http_fail_outside(struct http *http, int error) {
    struct op op = {.kind = http->request.kind, .result.error = error};
    http_note_failure(http, IOU_HTTP_FAILED, &op);
}

bool http_run(struct lane_thread *thread, struct op *op) {
    int error = operation_run(thread, op);
    counts_report(thread->lane, op, 0); /* the owner, which answers an error, logs it, too */
    if (error)
        http_note_failure(http_of(thread->lane), IOU_HTTP_FAILED, op);
    return error == 0;
}

/* ---- the end of a request --------------------------------------------------------------------------------------- */

void http_tell_leader(struct iou_lane *lane) {
    if (http_of(lane)->watched)
        socket_wake(lane);
}

/* End the use of the ticket, before the answer is sent: a client with the answer sees the new state of the ticket. */
static void end_use(struct iou_lane *lane) {
    lane_renew(lane); /* first: a ticket that is expired and has no request is released */
    lane->state.active = false;
}

static void record(struct iou_lane *lane, bool failed) {
    const struct http_request *request = &http_of(lane)->request;
    uint32_t done = request->kind == IOU_READ && !request->whole ? 206 : 200;
    iou_record result = http_describe(request);
    result.result = failed ? 0 : done;
    result.error = failed ? http_of(lane)->end.error : 0;
    work_record(lane, &http_of(lane)->running, result);
}

static void leave_request(struct iou_lane *lane) {
    http_of(lane)->busy = false;
    lane->state.running--;
    http_tell_leader(lane);
}

/* Discard the bytes of a short rest of the body that come in a moment: the connection can go on after a whole body. */
static void drop_rest(struct iou_lane *lane) {
    struct http *http = http_of(lane);
    bool whole = http->end.reason == IOU_HTTP_FAILED || http->end.reason == IOU_HTTP_ENCODING;
    uint64_t *unread = body_unread(&http->body);
    int error;
    if (*unread == 0) /* the thread that took the last piece may not be the leader any more */
        return;
    if (whole && *unread <= HTTP_PIECE && !lane->state.broken)
        *unread -= socket_receive(lane, NULL, *unread, SOCKET_MOMENT, &error);
}

void http_fail(struct iou_lane *lane) {
    struct http *http = http_of(lane);
    body_end_encoded(lane, &http->body);
    if (http->request.kind == IOU_WRITE)
        drop_rest(lane);
    http->end.unread = http->request.kind == IOU_WRITE ? *body_unread(&http->body) : 0;
    if (http->started)
        http->end.reason = IOU_HTTP_CUT;
    end_use(lane);
    lane->state.requests--; /* the owner answers and counts it */
    lane->state.leaving = true;
    record(lane, true);
    leave_request(lane);
}

static void succeed(struct iou_lane *lane) {
    end_use(lane);
    if (http_of(lane)->request.kind != IOU_READ)
        http_answer_done(lane);
    record(lane, false);
    leave_request(lane);
}

void http_finish(struct lane_thread *thread) {
    struct http *http = http_of(thread->lane);
    struct op flush = {.kind = IOU_FLUSH, .offset = http->request.offset, .length = http->request.length};
    if (!http->failed && (!http->request.flush || http_run(thread, &flush)))
        succeed(thread->lane);
    else
        http_fail(thread->lane);
}
