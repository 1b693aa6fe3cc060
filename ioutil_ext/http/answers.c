/* SPDX-License-Identifier: Apache-2.0 */

/* The answers to requests that succeed: the owner's templates, with numbers and the date filled in. */

#include <stdio.h>
#include <string.h>

#include "http/http.h"

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
    struct iovec part = {.iov_base = (void *)(uintptr_t)CONTINUE, .iov_len = sizeof(CONTINUE) - 1};
    lane_send(lane, &part, 1);
}

void http_answer_done(struct iou_lane *lane) {
    char answer[MAX_FILLED];
    struct http *http = http_of(lane);
    struct iovec part = {.iov_base = answer, .iov_len = fill_template(http, http->request.answer, answer)};
    lane_send(lane, &part, 1);
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
    struct iovec rest = {.iov_base = head + sent, .iov_len = before - sent};
    lane_send(lane, &rest, 1);
    return 0;
}
