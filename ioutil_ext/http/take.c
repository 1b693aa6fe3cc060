/* SPDX-License-Identifier: Apache-2.0 */

/* The requests that a lane serves. Its owner reads other requests again, and decides or refuses them. */

#include "http/http.h"

/*
 * Resolve the range of a GET, which is cut at the end of the ticket (RFC 9110 14.1.2). False: it begins there or later,
 * or the templates are for another generation, or the image is smaller than the ticket: its known size may be outdated.
 */
static bool resolve(const struct iou_lane *lane, const struct http_plain *plain, struct http_request *request) {
    uint64_t end = plain->part == HTTP_SPAN && plain->last < lane->size ? plain->last + 1 : lane->size;
    uint64_t generation = http_of(lane)->generation;
    if (plain->first >= lane->size || lane->handle->image->size < lane->size)
        return false;
    if (generation && generation != iou_handle_generation(lane->handle))
        return false;
    request->status = plain->part == HTTP_ALL ? 200 : 206;
    request->answer = plain->part == HTTP_ALL ? &http_of(lane)->whole : &http_of(lane)->partial;
    request->offset = plain->first;
    request->length = end - plain->first;
    return true;
}

bool http_may_write(const struct iou_lane *lane, uint64_t offset, uint64_t length) {
    const struct image *image = lane->handle->image;
    uint64_t size = image->grows ? lane->size : min_u64(lane->size, image->size);
    return !(lane->flags & IOU_LANE_READ_ONLY) && lies_in(offset, length, size);
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
    if (!http_may_write(lane, plain->first, length))
        return HTTP_OTHER;
    http_of(lane)->request = (struct http_request){
        .kind = IOU_WRITE,
        .flush = plain->flush,
        .expects = plain->expects,
        .encoded = plain->encoded,
        .asks = plain->asks,
        .status = 200,
        .offset = plain->first,
        .length = length,
        .body = plain->length,
        .answer = &http_of(lane)->done,
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
    if (!patch.is_flush && (patch.size == 0 || !http_may_write(lane, patch.offset, patch.size)))
        return HTTP_OTHER;
    http_of(lane)->request = (struct http_request){
        .kind = patch.is_flush ? IOU_FLUSH : IOU_ZERO,
        .flush = patch.flush,
        .fast = patch.fast,
        .asks = plain->asks,
        .status = 200,
        .offset = patch.offset,
        .length = patch.size,
        .answer = &http_of(lane)->done,
    };
    plain->size += (uint32_t)plain->length;
    return HTTP_WHOLE;
}

enum http_found http_take(struct iou_lane *lane) {
    const struct http *http = http_of(lane);
    struct http_text data = {staged_bytes(&lane->staging), lane->staging.bytes + lane->staging.end};
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

/* ---- instructions ----------------------------------------------------------------------------------------------- */

/* Whether the numbers of a body are consistent. A body without chunks that is not encoded has the length of its
   range. */
static bool is_instruction_sound(const iou_instruction *said) {
    bool chunked = said->flags & IOU_INSTRUCTION_CHUNKED, encoded = said->flags & IOU_INSTRUCTION_ENCODED;
    if (!lies_in(said->offset, said->length, INT64_MAX) || said->body > INT64_MAX)
        return false;
    if (said->kind == IOU_READ)
        return !said->flags && !said->body;
    if (said->kind != IOU_WRITE || (chunked && said->body) || (encoded && !said->length))
        return false;
    if (said->flags & IOU_INSTRUCTION_UNBOUNDED)
        return chunked && !encoded && !said->length;
    return encoded || (!chunked && said->body == said->length);
}

bool http_take_instruction(struct http *http, const iou_instruction *said) {
    http->request = (struct http_request){
        .kind = said->kind,
        .flush = said->flags & IOU_INSTRUCTION_FLUSH,
        .expects = said->flags & IOU_INSTRUCTION_EXPECTS,
        .encoded = said->flags & IOU_INSTRUCTION_ENCODED,
        .chunked = said->flags & IOU_INSTRUCTION_CHUNKED,
        .unbounded = said->flags & IOU_INSTRUCTION_UNBOUNDED,
        .status = said->status,
        .offset = said->offset,
        .length = said->length,
        .body = said->body,
        .answer = &http->instructed,
    };
    http->instruction = INSTRUCTED;
    return is_instruction_sound(said);
}

bool http_is_allowed(const struct iou_lane *lane) {
    const struct http_request *request = &http_of(lane)->request;
    if (request->kind != IOU_READ)
        return http_may_write(lane, request->offset, request->length);
    return lies_in(request->offset, request->length, min_u64(lane->size, lane->handle->image->size));
}
