/* SPDX-License-Identifier: Apache-2.0 */

/* Replies of NBD, checked against what was asked, and against the content where that is known. */

#include "fuzz.h"

#define DONE 1u
#define HOLE 3u

static uint64_t get(const char *place, unsigned size) {
    uint64_t number = 0;
    while (size--)
        number = number << 8 | (unsigned char)*place++;
    return number;
}

static struct asked *find(struct exchange *exchange, const char *cookie) {
    uint64_t number;
    memcpy(&number, cookie, sizeof(number));
    CHECK(number < exchange->count);
    struct asked *asked = &exchange->asked[number];
    CHECK(!asked->answered);
    CHECK(!exchange->in_order || number == exchange->answered);
    return asked;
}

/* ---- the end of a request --------------------------------------------------------------------------------------- */

static void check_error(const struct exchange *exchange, const struct asked *asked, uint32_t error) {
    const struct request *request = &asked->request;
    if (request->error)
        CHECK(error == request->error);
    else if (exchange->faulty && error == NBD_EIO)
        return;
    else if (request->command == CMD_WRITE_ZEROES && request->flags & FLAG_FAST_ZERO)
        CHECK(error == 0 || error == NBD_ENOTSUP);
    else
        CHECK(error == 0);
}

static void apply(struct exchange *exchange, const struct asked *asked) {
    const struct request *request = &asked->request;
    if (request->command == CMD_WRITE && request->length)
        memcpy(exchange->model + request->offset, asked->payload, request->length);
    if (request->command == CMD_WRITE_ZEROES)
        memset(exchange->model + request->offset, 0, request->length);
    if (request->command == CMD_TRIM) /* what it frees is zeros, the rest is as it was */
        exchange->certain = false;
}

static void finish(struct exchange *exchange, struct asked *asked, uint32_t error) {
    check_error(exchange, asked, error);
    asked->answered = true;
    exchange->answered++;
    if (!error && asked->request.command == CMD_READ)
        CHECK(asked->read == asked->request.length);
    if (!error && asked->request.command == CMD_BLOCK_STATUS)
        CHECK(asked->told == exchange->contexts_count);
    if (!error && exchange->in_order)
        apply(exchange, asked);
}

/* ---- content ---------------------------------------------------------------------------------------------------- */

/* Data comes in order. */
static void take_data(const struct exchange *exchange, struct asked *asked, uint64_t offset, const char *data,
                      uint64_t length) {
    const struct request *request = &asked->request;
    CHECK(request->command == CMD_READ && !request->error);
    CHECK(offset == request->offset + asked->read && length <= request->length - asked->read);
    asked->read += length;
    if (exchange->certain)
        CHECK(memcmp(data, exchange->model + offset, length) == 0);
}

static void take_hole(const struct exchange *exchange, struct asked *asked, uint64_t offset, uint64_t length) {
    static const char ZEROS[64 * 1024];
    CHECK(length > 0);
    for (uint64_t part; length; offset += part, length -= part) {
        part = min_u64(length, sizeof(ZEROS));
        take_data(exchange, asked, offset, ZEROS, part);
    }
}

static void take_extents(const struct exchange *exchange, const struct asked *asked, const char *payload,
                         uint64_t length) {
    const struct request *request = &asked->request;
    unsigned width = exchange->dialect.flags & IOU_LANE_EXTENDED ? 8 : 4;
    uint64_t offset = request->offset, count = length / (2 * width);
    CHECK(request->command == CMD_BLOCK_STATUS && !request->error);
    CHECK(count > 0 && length == count * 2 * width && (count == 1 || !(request->flags & FLAG_REQ_ONE)));
    for (; count--; payload += 2 * width) {
        uint64_t bytes = get(payload, width), status = get(payload + width, width);
        CHECK(bytes && (status == 0 || (status == HOLE && asked->told == 0)) &&
              bytes <= request->offset + request->length - offset);
        if (status == HOLE && exchange->certain)
            CHECK(iou_is_zero(exchange->model + offset, bytes));
        offset += bytes;
    }
}

/* ---- replies ---------------------------------------------------------------------------------------------------- */

/* Each returns how many bytes the reply is long, 0: there is more to come. */
static size_t take_simple(struct exchange *exchange, const char *reply, size_t size) {
    if (size < 16)
        return 0;
    struct asked *asked = find(exchange, reply + 8);
    uint32_t error = (uint32_t)get(reply + 4, 4);
    uint64_t data = error || asked->request.command != CMD_READ ? 0 : asked->request.length;
    bool chunks = wire_has_chunks(&exchange->dialect);
    CHECK(!(exchange->dialect.flags & IOU_LANE_EXTENDED));
    CHECK(!chunks || (!error && asked->request.command != CMD_READ && asked->request.command != CMD_BLOCK_STATUS));
    if (size - 16 < data)
        return 0;
    if (data)
        take_data(exchange, asked, asked->request.offset, reply + 16, data);
    finish(exchange, asked, error);
    return 16 + data;
}

static void take_content(struct exchange *exchange, struct asked *asked, unsigned type, const char *payload,
                         uint64_t length) {
    bool extended = exchange->dialect.flags & IOU_LANE_EXTENDED;
    uint64_t fixed = type == CHUNK_NONE ? 0 : type == CHUNK_STATUS ? 4 : 8;
    CHECK(length >= fixed);
    if (type == CHUNK_NONE) {
        CHECK(length == 0);
    } else if (type == CHUNK_DATA) {
        CHECK(length > 8);
        take_data(exchange, asked, get(payload, 8), payload + 8, length - 8);
    } else if (type == CHUNK_HOLE) {
        CHECK(length == 12);
        take_hole(exchange, asked, get(payload, 8), get(payload + 8, 4));
    } else {
        CHECK(type == (extended ? CHUNK_STATUS_EXT : CHUNK_STATUS) && asked->told < exchange->contexts_count);
        CHECK(get(payload, 4) == exchange->contexts[asked->told].id);
        CHECK(!extended || get(payload + 4, 4) == (length - fixed) / 16);
        take_extents(exchange, asked, payload + fixed, length - fixed);
        asked->told++;
    }
}

static size_t take_chunk(struct exchange *exchange, const char *reply, size_t size) {
    bool extended = exchange->dialect.flags & IOU_LANE_EXTENDED;
    size_t head = extended ? 32 : 20;
    if (size < head)
        return 0;
    struct asked *asked = find(exchange, reply + 8);
    uint64_t length = get(reply + head - (extended ? 8 : 4), extended ? 8 : 4);
    unsigned flags = (unsigned)get(reply + 4, 2), type = (unsigned)get(reply + 6, 2);
    uint32_t error = 0;
    const char *payload = reply + head;
    CHECK(wire_has_chunks(&exchange->dialect) && flags <= DONE && length <= 64 * MIB);
    CHECK(!extended || get(reply + 16, 8) == asked->request.offset);
    if (size - head < length)
        return 0;
    if (type == CHUNK_ERROR) {
        error = (uint32_t)get(payload, 4);
        CHECK(length >= 6 && error && flags == DONE && length == 6 + get(payload + 4, 2));
    } else {
        take_content(exchange, asked, type, payload, length);
    }
    if (flags == DONE)
        finish(exchange, asked, error);
    return head + length;
}

unsigned look_at_replies(struct exchange *exchange, const struct bytes *received) {
    unsigned before = exchange->answered;
    size_t size = 1;
    while (size && received->length - exchange->looked_at >= 4) {
        const char *reply = received->data + exchange->looked_at;
        size_t left = received->length - exchange->looked_at;
        uint64_t magic = get(reply, 4);
        CHECK(magic == 0x67446698u ||
              magic == (exchange->dialect.flags & IOU_LANE_EXTENDED ? 0x6E8A278Cu : 0x668E33EFu));
        size = (magic == 0x67446698u ? take_simple : take_chunk)(exchange, reply, left);
        exchange->looked_at += size;
    }
    return exchange->answered - before;
}
