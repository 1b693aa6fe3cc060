/* SPDX-License-Identifier: Apache-2.0 */

/* The end of a request: its failure, the unread rest of its body, its answer and its record. */

#include <stdio.h>
#include <string.h>

#include "http/http.h"

/* ---- answers that succeed: the owner's templates, with numbers and the date ------------------------------------- */

/* Most bytes of a filled template: the template, the fields for Origin, and 32 bytes for each number and the date. */
#define MAX_FILLED (2 * HTTP_MAX_TEMPLATE + 4 * 32)

/* Return the current date (RFC 9110 5.6.7), which does not depend on the locale. */
static const char *date(struct http *http) {
    static const char DAYS[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char MONTHS[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t now = time(NULL);
    struct tm tm;
    if (now != http->second && gmtime_r(&now, &tm)) {
        snprintf(http->date, sizeof(http->date), "%s, %02u %s %04u %02u:%02u:%02u GMT", DAYS[tm.tm_wday],
                 (unsigned)tm.tm_mday % 100, MONTHS[tm.tm_mon], (unsigned)(tm.tm_year + 1900) % 10000,
                 (unsigned)tm.tm_hour % 100, (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
        http->second = now;
    }
    return http->date;
}

static size_t put_origin(const struct http *http, char *place) {
    if (!(http->request.asks & IOU_ASKS_ORIGIN))
        return 0;
    memcpy(place, http->origin.text, http->origin.length);
    return http->origin.length;
}

/* Write one byte of a template, or the value that replaces it. Returns how many bytes were written. */
static size_t put_byte(struct http *http, char *place, char c) {
    const struct http_request *request = &http->request;
    switch (c) {
    case IOU_HTTP_FIRST:
        return (size_t)sprintf(place, "%llu", (unsigned long long)request->offset);
    case IOU_HTTP_LAST:
        return (size_t)sprintf(place, "%llu", (unsigned long long)(request->offset + request->length - 1));
    case IOU_HTTP_LENGTH:
        return (size_t)sprintf(place, "%llu", (unsigned long long)request->length);
    case IOU_HTTP_DATE:
        return (size_t)sprintf(place, "%s", date(http));
    case IOU_HTTP_ORIGIN:
        return put_origin(http, place);
    default:
        *place = c;
        return 1;
    }
}

/* Fill a template. The result fits, because lane.c has checked that each replaced byte occurs at most once. */
static size_t fill_template(struct http *http, const struct http_template *template, char *place) {
    size_t size = 0;
    for (uint64_t i = 0; i < template->length; i++)
        size += put_byte(http, place + size, template->text[i]);
    return size;
}

void http_answer_continue(struct iou_lane *lane) {
    static const char CONTINUE[] = "HTTP/1.1 100 Continue\r\n\r\n";
    lane_send_one(lane, CONTINUE, sizeof(CONTINUE) - 1);
}

/* Send the answer to a PUT or PATCH that has succeeded, or to a GET of no bytes. */
static void send_done_answer(struct iou_lane *lane) {
    char answer[MAX_FILLED];
    struct http *http = http_of(lane);
    lane_send_one(lane, answer, fill_template(http, http->request.answer, answer));
}

uint64_t http_answer_data(struct iou_lane *lane, char *data, uint64_t length, bool first) {
    char head[MAX_FILLED];
    struct http *http = http_of(lane);
    struct iovec parts[] = {
        {.iov_base = head, .iov_len = first ? fill_template(http, http->request.answer, head) : 0},
        {.iov_base = data, .iov_len = length},
    };
    uint64_t before = parts[0].iov_len, sent = lane_send_until_pause(lane, parts, 2);
    if (sent >= before)
        return sent - before;
    lane_send_one(lane, head + sent, before - sent);
    return 0;
}

/* ---- failures --------------------------------------------------------------------------------------------------- */

void http_note_failure(struct http *http, iou_http_reason reason, const struct op *op) {
    if (!http->failed) {
        http->end = (iou_http_end){.reason = (uint32_t)reason, .asks = http->request.asks};
        if (reason == IOU_HTTP_ENCODING || reason == IOU_HTTP_CHUNKS)
            http->end.refusal = http->body.refusal;
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
}

void http_fail_outside(struct http *http, int error) {
    struct op op = {.kind = http->request.kind, .result.error = error};
    http_note_failure(http, IOU_HTTP_FAILED, &op);
}

void http_note_outside(struct iou_lane *lane, uint64_t offset, uint64_t length) {
    uint64_t size = min_u64(lane->size, lane->handle->image->size);
    struct op op = {.kind = http_of(lane)->request.kind, .offset = offset, .length = length, .result.size = size};
    http_note_failure(http_of(lane), IOU_HTTP_RANGE, &op);
}

bool http_run(struct task *task, struct op *op) {
    int error = operation_run(task, op);
    counts_report(task->lane, op, 0); /* the owner, which answers an error, logs it, too */
    if (error) {
        http_note_failure(http_of(task->lane), IOU_HTTP_FAILED, op);
        http_changed(task->lane);
    }
    return error == 0;
}

/* ---- the end of a request --------------------------------------------------------------------------------------- */

void http_changed(struct iou_lane *lane) {
    lane_changed(lane);
    fiber_disturb(&lane->tasks.leader->fiber); /* in lane_watch() */
}

/* End the use of the ticket, before the answer is sent: a client with the answer sees the new state of the ticket. */
static void end_use(struct iou_lane *lane) {
    lane_renew(lane); /* first: a ticket that is expired and has no request is released */
    lane->state.active = false;
}

static void record(struct iou_lane *lane, bool failed) {
    const struct http_request *request = &http_of(lane)->request;
    iou_record result = http_describe(request);
    result.result = failed ? 0 : request->status;
    result.error = failed ? http_of(lane)->end.error : 0;
    work_record(lane, &http_of(lane)->running, result);
}

static void leave_request(struct iou_lane *lane) {
    http_of(lane)->busy = false;
    lane->state.running--;
    http_changed(lane);
}

/* Discard a short rest of the body if it arrives within a moment: the connection stays usable after a whole body. */
static void drop_rest(struct iou_lane *lane) {
    struct http *http = http_of(lane);
    bool whole = http->end.reason == IOU_HTTP_FAILED || http->end.reason == IOU_HTTP_ENCODING;
    uint64_t *unread = body_unread(&http->body);
    int error;
    if (http->request.chunked) { /* the connection ends with the request, and the owner drops the rest */
        body_drop_staged(lane, &http->body);
        http->end.chunks = http->body.chunks;
        *unread = 0;
    }
    if (*unread == 0) /* the task that took the last piece may not be the leader any more */
        return;
    if (whole && *unread <= HTTP_PIECE && !lane->state.broken)
        *unread -= socket_receive(lane, NULL, *unread, SOCKET_MOMENT, &error);
}

void http_fail(struct iou_lane *lane) {
    struct http *http = http_of(lane);
    body_end_encoded(&http->body);
    if (http->request.kind == IOU_WRITE)
        drop_rest(lane);
    http->end.unread = http->request.kind == IOU_WRITE ? *body_unread(&http->body) : 0;
    if (http->started)
        http->end.reason = IOU_HTTP_CUT;
    end_use(lane);
    if (!http->instruction)
        lane->state.requests--; /* the owner answers and counts it */
    lane->state.leaving = true;
    record(lane, true);
    leave_request(lane);
}

static void succeed(struct iou_lane *lane) {
    end_use(lane);
    const struct http_request *request = &http_of(lane)->request;
    if (request->kind != IOU_READ || request->length == 0)
        send_done_answer(lane);
    record(lane, false);
    leave_request(lane);
}

void http_finish(struct task *task) {
    struct http *http = http_of(task->lane);
    struct op flush = {
        .kind = IOU_FLUSH,
        .offset = http->request.offset,
        .length = http->request.length,
        .alone = true,
    };
    if (!http->failed && (!http->request.flush || http_run(task, &flush)))
        succeed(task->lane);
    else
        http_fail(task->lane);
}
