/* SPDX-License-Identifier: Apache-2.0 */

/* Chunks of structured replies (doc/proto.md, "Structured reply types"), with limits on what each may have. */

#include <string.h>

#include "base/big_endian.h"
#include "base/numbers.h"
#include "nbd_client/replies.h"

#define ERROR_BIT 0x8000u /* a bit of all types of errors */
#define HOLE_SIZE 12u
#define MAX_STRING 4096u
#define MAX_ERROR (4 + 2 + MAX_STRING + 8)
/* Extents in one chunk, as proto.md recommends. */
#define MAX_EXTENTS ((uint64_t)1 << 20)

static uint32_t status_type(const struct replies *replies) {
    return replies->agreed->extended ? CHUNK_STATUS_EXT : CHUNK_STATUS;
}

/* Bytes before the extents of a chunk, and of each extent. */
static uint32_t status_head(const struct replies *replies) {
    return replies->agreed->extended ? 8 : 4;
}

static uint32_t extent_size(const struct replies *replies) {
    return replies->agreed->extended ? 16 : 8;
}

/* ---- the head --------------------------------------------------------------------------------------------------- */

static bool is_status_length(const struct replies *replies, uint64_t length) {
    uint64_t head = status_head(replies), extent = extent_size(replies);
    return length > head && length - head <= MAX_EXTENTS * extent && (length - head) % extent == 0;
}

const char *chunk_begin(struct replies *replies) {
    uint64_t length = replies->left;
    replies->expected = REPLY_PAYLOAD;
    if (replies->type == CHUNK_NONE) {
        if (length || !replies->done)
            return "an empty chunk that is not empty, or not the last one";
        return replies_payload_ended(replies);
    }
    if (replies->type == CHUNK_DATA)
        return length > 8 ? NULL : "data of no bytes";
    if (replies->type == CHUNK_HOLE)
        return length == HOLE_SIZE ? NULL : "a hole of another length than holes have";
    if (replies->type & ERROR_BIT)
        return length >= 6 && length <= MAX_ERROR ? NULL : "an error of a length that it cannot have";
    if (replies->type != status_type(replies))
        return "a chunk of an unknown type";
    return is_status_length(replies, length) ? NULL : "a status of a length that it cannot have";
}

/* ---- payloads --------------------------------------------------------------------------------------------------- */

static const char *take_hole(struct replies *replies, const char *payload) {
    const char *why;
    uint32_t length = get32(payload + 8);
    char *place = request_place(replies->request, get64(payload), length, &why);
    if (!place)
        return why;
    memset(place, 0, length);
    return replies_payload_ended(replies);
}

static const char *take_error(struct replies *replies, const char *payload, uint64_t length) {
    uint32_t error = get32(payload), text = get16(payload + 4);
    if (!error || text > length - 6)
        return "an error that is none, or is shorter than its text";
    bool first = !replies->request->error;
    request_refused(replies->request, error);
    if (first)
        replies->requests->refused(replies->requests, replies->request, payload + 6, text);
    return replies_payload_ended(replies);
}

static const char *begin_status(struct replies *replies, const char *payload, uint64_t length) {
    struct nbd_request *request = replies->request;
    replies->told = request->command == CMD_BLOCK_STATUS ? status_find(request->status, get32(payload)) : NULL;
    if (!replies->told)
        return "a status that was not asked for, or was there before";
    replies->left = length - status_head(replies);
    if (replies->agreed->extended && get32(payload + 4) != replies->left / extent_size(replies))
        return "a status of another number of extents than it tells";
    replies->told->answered = true;
    replies->expected = REPLY_EXTENTS;
    return NULL;
}

/* Return how many bytes of the payload must have arrived before they are parsed. */
static uint64_t needed(const struct replies *replies) {
    return replies->type == CHUNK_DATA             ? 8
           : replies->type == status_type(replies) ? status_head(replies)
                                                   : replies->left;
}

static const char *take_payload(struct replies *replies, bool *more) {
    const char *payload = replies->staging + replies->start;
    uint64_t need = needed(replies), length = replies->left;
    *more = replies->end - replies->start >= need;
    if (!*more)
        return NULL;
    replies->start += (uint32_t)need;
    if (replies->type == CHUNK_DATA)
        return replies_data(replies, get64(payload), length - 8);
    if (replies->type == CHUNK_HOLE)
        return take_hole(replies, payload);
    if (replies->type & ERROR_BIT)
        return take_error(replies, payload, length);
    return begin_status(replies, payload, length);
}

static const char *take_extents(struct replies *replies, bool *more) {
    struct status *status = replies->request->status;
    uint32_t size = extent_size(replies);
    while (replies->left && replies->end - replies->start >= size) {
        const char *extent = replies->staging + replies->start;
        bool extended = replies->agreed->extended;
        uint64_t length = extended ? get64(extent) : get32(extent);
        if (!status_add(status, replies->told, length, extended ? get64(extent + 8) : get32(extent + 4)))
            return "an empty extent, or one that is too long";
        replies->start += size;
        replies->left -= size;
    }
    *more = replies->left == 0;
    return *more ? replies_payload_ended(replies) : NULL;
}

const char *chunk_take(struct replies *replies, bool *more) {
    return replies->expected == REPLY_EXTENTS ? take_extents(replies, more) : take_payload(replies, more);
}
