/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The messages of the transmission phase, and the checks of requests ("Transmission" and "Values" in doc/proto.md of
 * the NBD project). Numbers are big-endian.
 */

#include <errno.h>
#include <string.h>

#include "base/big_endian.h"
#include "nbd/wire.h"

/* ---- requests --------------------------------------------------------------------------------------------------- */

static void wire_refuse(struct request *request, uint32_t error, const char *text) {
    request->error = error;
    request->text = text;
}

/* Return the flags that a command may have. FUA is valid with every command, if it is offered. */
static unsigned allowed_flags(const struct dialect *dialect, unsigned command) {
    unsigned fua = dialect->flags & IOU_LANE_NO_FLUSH ? 0 : FLAG_FUA;
    switch (command) {
    case CMD_READ:
        return fua | (wire_has_chunks(dialect) ? FLAG_DF : 0);
    case CMD_WRITE:
        return fua | (dialect->flags & IOU_LANE_EXTENDED ? FLAG_PAYLOAD_LEN : 0);
    case CMD_WRITE_ZEROES:
        return fua | FLAG_NO_HOLE | FLAG_FAST_ZERO;
    case CMD_BLOCK_STATUS:
        return fua | FLAG_REQ_ONE;
    default:
        return fua;
    }
}

static bool is_writing(unsigned command) {
    return command == CMD_WRITE || command == CMD_TRIM || command == CMD_WRITE_ZEROES;
}

static void check_status(const struct dialect *dialect, struct request *request) {
    if (!(dialect->flags & IOU_LANE_STATUS))
        wire_refuse(request, NBD_EINVAL, "no metadata context was selected");
    else if (request->length == 0)
        wire_refuse(request, NBD_EINVAL, "an empty range has no status");
}

static void check_request(const struct dialect *dialect, struct request *request) {
    unsigned command = request->command;
    if (command >= COMMANDS)
        wire_refuse(request, NBD_EINVAL, "unknown command");
    else if (request->flags & ~allowed_flags(dialect, command))
        wire_refuse(request, NBD_EINVAL, "unknown flag, or not for this command");
    else if (command == CMD_FLUSH && dialect->flags & IOU_LANE_NO_FLUSH)
        wire_refuse(request, NBD_EINVAL, "the storage cannot flush");
    else if (command == CMD_DISC || command == CMD_FLUSH)
        return;
    else if (dialect->flags & IOU_LANE_READ_ONLY && is_writing(command))
        wire_refuse(request, NBD_EPERM, "the export is read-only");
    else if (!lies_in(request->offset, request->length, dialect->size))
        wire_refuse(request, command == CMD_WRITE || command == CMD_WRITE_ZEROES ? NBD_ENOSPC : NBD_EINVAL,
                    "the range is not inside the export");
    else if (request->length > MAX_PAYLOAD && command == CMD_READ)
        wire_refuse(request, NBD_EOVERFLOW, "the range is longer than the largest payload");
    else if (request->length > MAX_PAYLOAD && command == CMD_WRITE)
        wire_refuse(request, NBD_EINVAL, "the payload is longer than the largest one");
    else if (command == CMD_BLOCK_STATUS)
        check_status(dialect, request);
}

int wire_parse(const struct dialect *dialect, const char *header, struct request *request) {
    bool extended = dialect->flags & IOU_LANE_EXTENDED;
    if (get32(header) != (extended ? MAGIC_EXTENDED_REQUEST : MAGIC_REQUEST))
        return -EPROTO;
    *request = (struct request){
        .flags = get16(header + 4),
        .command = get16(header + 6),
        .offset = get64(header + 16),
        .length = extended ? get64(header + 24) : get32(header + 24),
    };
    memcpy(&request->cookie, header + 8, sizeof(request->cookie));
    if (request->command == CMD_WRITE || (extended && request->flags & FLAG_PAYLOAD_LEN))
        request->payload = request->length;
    check_request(dialect, request);
    return 0;
}

/* ---- replies ---------------------------------------------------------------------------------------------------- */

size_t wire_simple(char *header, const struct request *request, uint32_t error) {
    size_t size = put32(header, MAGIC_SIMPLE_REPLY);
    size += put32(header + size, error);
    memcpy(header + size, &request->cookie, sizeof(request->cookie));
    return size + sizeof(request->cookie);
}

size_t wire_chunk(char *header, const struct dialect *dialect, const struct request *request, uint16_t type, bool done,
                  uint64_t length) {
    bool extended = dialect->flags & IOU_LANE_EXTENDED;
    size_t size = put32(header, extended ? MAGIC_EXTENDED_CHUNK : MAGIC_CHUNK);
    size += put16(header + size, done ? REPLY_FLAG_DONE : 0);
    size += put16(header + size, type);
    memcpy(header + size, &request->cookie, sizeof(request->cookie));
    size += sizeof(request->cookie);
    if (!extended)
        return size + put32(header + size, (uint32_t)length);
    size += put64(header + size, request->offset);
    return size + put64(header + size, length);
}
