/* SPDX-License-Identifier: Apache-2.0 */

/* Messages of NBD: a request that is not refused is inside all limits, and what was parsed is what was there. */

#include "fuzz.h"

static uint64_t get(const char *place, unsigned size) {
    uint64_t number = 0;
    while (size--)
        number = number << 8 | (unsigned char)*place++;
    return number;
}

static void check_parsed(const struct dialect *dialect, const char *header, const struct request *request) {
    bool extended = dialect->flags & IOU_LANE_EXTENDED;
    CHECK(get(header, 4) == (extended ? 0x21E41C71u : 0x25609513u));
    CHECK(request->flags == get(header + 4, 2) && request->command == get(header + 6, 2));
    CHECK(memcmp(&request->cookie, header + 8, 8) == 0 && request->offset == get(header + 16, 8));
    CHECK(request->length == get(header + 24, extended ? 8 : 4));
    CHECK(request->payload == 0 || request->payload == request->length);
    CHECK((request->error == 0) == (request->text == NULL));
    CHECK(request->error || request->command != CMD_WRITE || request->payload == request->length);
}

static void check_accepted(const struct dialect *dialect, const struct request *request) {
    bool writes = request->command == CMD_WRITE || request->command == CMD_TRIM || request->command == CMD_WRITE_ZEROES;
    CHECK(request->command < COMMANDS);
    CHECK(!writes || !(dialect->flags & IOU_LANE_READ_ONLY));
    if (request->command == CMD_DISC || request->command == CMD_FLUSH)
        return;
    CHECK(request->length <= dialect->size && request->offset <= dialect->size &&
          request->offset + request->length <= dialect->size);
    if (request->command == CMD_READ || request->command == CMD_WRITE)
        CHECK(request->length <= MAX_PAYLOAD);
    else
        CHECK(request->payload == 0);
    if (request->command == CMD_BLOCK_STATUS)
        CHECK(request->length && dialect->flags & IOU_LANE_STATUS);
}

static void check_replies(const struct dialect *dialect, const char *header, const struct request *request) {
    bool extended = dialect->flags & IOU_LANE_EXTENDED;
    char reply[MAX_HEADER];
    CHECK(wire_simple(reply, request, request->error) == 16);
    CHECK(get(reply + 4, 4) == request->error && memcmp(reply + 8, header + 8, 8) == 0);
    CHECK(wire_chunk(reply, dialect, request, CHUNK_DATA, true, 77) == (extended ? 32 : 20));
    CHECK(get(reply + 4, 2) == 1 && get(reply + 6, 2) == CHUNK_DATA && memcmp(reply + 8, header + 8, 8) == 0);
    CHECK(get(reply + (extended ? 24 : 16), extended ? 8 : 4) == 77);
}

/* The negotiation, the size of the export, and a header. */
static void run(const char *data, size_t size) {
    static const uint64_t SIZES[] = {0, 1, 511, 4096, 1 << 20, UINT64_C(1) << 40, INT64_MAX - 1, INT64_MAX};
    char header[MAX_HEADER] = {0}; /* the shorter one is at its beginning */
    struct request request = {0};
    if (size < 2)
        return;
    struct dialect dialect = {.size = SIZES[data[1] & 7], .flags = (unsigned char)data[0]};
    dialect.header_size = dialect.flags & IOU_LANE_EXTENDED ? 32 : 28;
    memcpy(header, data + 2, min_u64(size - 2, dialect.header_size));
    if (wire_parse(&dialect, header, &request))
        return;
    check_parsed(&dialect, header, &request);
    if (!request.error)
        check_accepted(&dialect, &request);
    check_replies(&dialect, header, &request);
}

const struct target nbd_wire_target = {.name = "nbd_wire", .run = run};
