/* SPDX-License-Identifier: Apache-2.0 */

/* Which requests a lane serves. What it does not is found again, served or refused by its owner. */

#include "http.h"

/* What is known of a smaller image may be old; a ticket may be larger than it. */
static bool may_read(const struct iou_lane *lane, const struct http_head *head) {
    return head->last < lane->size && lane->handle->image->size >= lane->size;
}

/* A file grows. */
static bool may_write(const struct iou_lane *lane, uint64_t offset, uint64_t length) {
    const struct image *image = lane->handle->image;
    uint64_t size = image->type == IOU_FILE ? lane->size : min_u64(lane->size, image->size);
    return !(lane->flags & IOU_LANE_READ_ONLY) && length <= size && offset <= size - length;
}

/* Take memory for the first piece. None is waited for: the owner has more. Before a slow body there is time for that.
 */
static bool take_memory(struct iou_lane *lane, uint64_t first, uint64_t length) {
    struct http *http = http_of(lane);
    http->first = memory_get(lane, room_for(first, http_piece_length(first, length)), false);
    return http->first;
}

static enum http_found take_get(struct iou_lane *lane, const struct http_head *head) {
    uint64_t length = head->last - head->first + 1;
    if (!may_read(lane, head) || !take_memory(lane, head->first, length))
        return HTTP_OTHER;
    http_of(lane)->request = (struct http_request){.kind = IOU_READ, .offset = head->first, .length = length};
    return HTTP_WHOLE;
}

static enum http_found take_put(struct iou_lane *lane, const struct http_head *head) {
    if (!may_write(lane, head->first, head->length))
        return HTTP_OTHER;
    if (!http_of(lane)->slow && !take_memory(lane, head->first, head->length))
        return HTTP_OTHER;
    http_of(lane)->request = (struct http_request){
        .kind = IOU_WRITE,
        .flush = head->flush,
        .offset = head->first,
        .length = head->length,
    };
    return HTTP_WHOLE;
}

/* It is understood when all of it is there. */
static enum http_found take_patch(struct iou_lane *lane, struct http_text data, struct http_head *head) {
    struct http_text body = {data.at + head->size, data.at + head->size + head->length};
    struct http_patch patch;
    if (body.end > data.end)
        return HTTP_MORE;
    if (!http_parse_patch(body, &patch) || lane->flags & IOU_LANE_READ_ONLY)
        return HTTP_OTHER;
    if (!patch.is_flush && (patch.size == 0 || !may_write(lane, patch.offset, patch.size)))
        return HTTP_OTHER;
    http_of(lane)->request = (struct http_request){
        .kind = patch.is_flush ? IOU_FLUSH : IOU_ZERO,
        .flush = patch.flush,
        .fast = patch.fast,
        .offset = patch.offset,
        .length = patch.size,
    };
    head->size += (uint32_t)head->length;
    return HTTP_WHOLE;
}

enum http_found http_take(struct iou_lane *lane) {
    const struct http *http = http_of(lane);
    struct http_text data = {lane->staging + lane->staged_start, lane->staging + lane->staged_end};
    struct http_text target = {http->target, http->target + http->target_length};
    struct http_head head;
    enum http_found found = http_parse_head(data, target, &head);
    if (found != HTTP_WHOLE)
        return found;
    if (head.method == HTTP_GET)
        found = take_get(lane, &head);
    else if (head.method == HTTP_PUT)
        found = take_put(lane, &head);
    else
        found = take_patch(lane, data, &head);
    if (found == HTTP_WHOLE)
        lane->staged_start += head.size;
    return found;
}
