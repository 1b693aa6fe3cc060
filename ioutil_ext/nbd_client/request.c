/* SPDX-License-Identifier: Apache-2.0 */

/* Requests: their headers, and which data a reply may have ("Transmission" in doc/proto.md of the NBD project). */

#include "nbd_client/request.h"
#include "base/big_endian.h"
#include "base/numbers.h"

size_t request_header(const struct nbd_request *request, bool extended, char *header) {
    uint16_t flags = request->flags;
    if (extended && request->command == CMD_WRITE)
        flags |= FLAG_PAYLOAD_LEN;
    put32(header, extended ? MAGIC_EXTENDED_REQUEST : MAGIC_REQUEST);
    put16(header + 4, flags);
    put16(header + 6, request->command);
    put64(header + 8, request->cookie);
    put64(header + 16, request->offset);
    return 24 + (extended ? put64(header + 24, request->length) : put32(header + 24, (uint32_t)request->length));
}

bool request_is_change(const struct nbd_request *request) {
    return request->command == CMD_WRITE || request->command == CMD_WRITE_ZEROES || request->command == CMD_TRIM;
}

bool request_was_too_long(const struct nbd_request *request, uint64_t most) {
    bool refused = request->error == NBD_EINVAL || request->error == NBD_EOVERFLOW;
    return refused && request->length > most && !(request->flags & FLAG_FAST_ZERO);
}

bool request_fails_flushes(const struct nbd_request *request, uint64_t most) {
    bool stable = request->command == CMD_FLUSH || (request_is_change(request) && request->flags & FLAG_FUA);
    bool undone = request->error == NBD_ESHUTDOWN || request_was_too_long(request, most) ||
                  (request->flags & FLAG_FAST_ZERO && request->error == NBD_ENOTSUP);
    return stable && request->error && !undone;
}

/* ---- data of a READ --------------------------------------------------------------------------------------------- */

char *request_place(struct nbd_request *request, uint64_t offset, uint64_t length, const char **why) {
    uint64_t start = offset - request->offset; /* wraps around below the offset */
    *why = "data in a reply that may have none, or outside of what was asked for";
    if (request->command != CMD_READ || length == 0 || !lies_in(start, length, request->length))
        return NULL;
    *why = "data that was there before";
    if (start < request->filled || ranges_overlap(&request->others, start, start + length))
        return NULL;
    if (start == request->filled)
        request->filled += length;
    else
        ranges_add(&request->others, start, start + length);
    return request->memory + start;
}

/* Whether all bytes have arrived. Bytes that a full set of ranges has dropped count as missing. */
static bool has_all_data(const struct nbd_request *request) {
    uint64_t end = request->filled;
    struct place place = {0};
    for (const iou_range *range; (range = blocks_next(&request->others, &place)) && range->start <= end;)
        end = max_u64(end, range->end);
    return end == request->length && !request->others.lost;
}

bool request_is_complete(const struct nbd_request *request) {
    return request->error || request->command != CMD_READ || has_all_data(request);
}

void request_refused(struct nbd_request *request, uint32_t error) {
    static const uint8_t KNOWN[] = {1, 5, 12, NBD_EINVAL, 28, NBD_EOVERFLOW, NBD_ENOTSUP, NBD_ESHUTDOWN};
    bool known = memchr(KNOWN, (int)(error & 0xff), sizeof(KNOWN)) && error <= 0xff;
    if (error == NBD_ENOTSUP && !(request->flags & FLAG_FAST_ZERO))
        known = false;
    if (!request->error)
        request->error = known ? error : NBD_EINVAL;
}
