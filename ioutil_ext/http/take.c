/* SPDX-License-Identifier: Apache-2.0 */

/* The requests that a lane serves. Its owner reads other requests again, and serves or refuses them. */

#include "http/http.h"

/*
 * Resolve the range of a GET. False: the image does not have all of it, or the template for the whole image is for
 * another generation. The known size of an image that is smaller than the ticket may be outdated.
 */
static bool resolve(const struct iou_lane *lane, const struct http_plain *plain, struct http_request *request) {
    uint64_t last = plain->part == HTTP_SPAN ? plain->last : lane->size - 1;
    uint64_t generation = http_of(lane)->generation;
    if (plain->first >= lane->size || last >= lane->size || lane->handle->image->size < lane->size)
        return false;
    if (plain->part == HTTP_ALL && generation && generation != iou_handle_generation(lane->handle))
        return false;
    request->whole = plain->part == HTTP_ALL;
    request->offset = plain->first;
    request->length = last - plain->first + 1;
    return true;
}

/* Whether the ticket and the image allow a change of this range. An image that grows may be smaller. */
static bool may_write(const struct iou_lane *lane, uint64_t offset, uint64_t length) {
    const struct image *image = lane->handle->image;
    uint64_t size = image->grows ? lane->size : min_u64(lane->size, image->size);
    return !(lane->flags & IOU_LANE_READ_ONLY) && length <= size && offset <= size - length;
}

static enum http_found take_get(struct iou_lane *lane, const struct http_plain *plain) {
    struct http_request request = {.kind = IOU_READ, .asks = plain->asks};
    if (!resolve(lane, plain, &request))
        return HTTP_OTHER;
    http_of(lane)->request = request;
    return HTTP_WHOLE;
}

static enum http_found take_put(struct iou_lane *lane, const struct http_plain *plain) {
    uint64_t length = plain->encoded ? plain->last - plain->first + 1 : plain->length;
    if (!may_write(lane, plain->first, length))
        return HTTP_OTHER;
    http_of(lane)->request = (struct http_request){
        .kind = IOU_WRITE,
        .flush = plain->flush,
        .expects = plain->expects,
        .asks = plain->asks,
        .offset = plain->first,
        .length = length,
        .encoded = plain->encoded ? plain->length : 0,
    };
    return HTTP_WHOLE;
}

/* Take a PATCH, as soon as all of its body has arrived. */
static enum http_found take_patch(struct iou_lane *lane, struct http_text data, struct http_plain *plain) {
    struct http_text body = {data.at + plain->size, data.at + plain->size + plain->length};
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
        .asks = plain->asks,
        .offset = patch.offset,
        .length = patch.size,
    };
    plain->size += (uint32_t)plain->length;
    return HTTP_WHOLE;
}

enum http_found http_take(struct iou_lane *lane) {
    const struct http *http = http_of(lane);
    struct http_text data = {lane->staging.bytes + lane->staging.start, lane->staging.bytes + lane->staging.end};
    struct http_text target = {http->target, http->target + http->target_length};
    struct http_plain plain;
    enum http_found found = http_find_plain(data, target, &plain);
    if (found != HTTP_WHOLE)
        return found;
    if (plain.method == HTTP_GET)
        found = take_get(lane, &plain);
    else if (plain.method == HTTP_PUT)
        found = take_put(lane, &plain);
    else
        found = take_patch(lane, data, &plain);
    if (found == HTTP_WHOLE)
        lane->staging.start += plain.size;
    return found;
}
