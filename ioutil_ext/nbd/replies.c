/* SPDX-License-Identifier: Apache-2.0 */

/* Replies, in each of the three forms that can be negotiated: simple, structured, extended. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/big_endian.h"
#include "nbd/nbd.h"

/* So many zeros are sent as a hole, which takes 32 bytes. */
#define HOLE (64 * KIB)

/* Most bytes before data or for a hole: a header, then the offset of the data, or offset and length of the hole. */
#define MAX_HEAD (MAX_HEADER + 12)

/* Most runs of data and holes in one piece, each with its head. */
#define MAX_RUNS (MEMORY_PIECE / HOLE + 1)

/* With structured replies, success without data is still a simple reply, which is the shortest one. A READ must have a
   structured reply (proto.md, "Transmission"). */
void reply_success(struct iou_lane *lane, const struct request *request) {
    char header[MAX_HEADER];
    bool chunk = nbd_of(lane)->dialect.flags & IOU_LANE_EXTENDED ||
                 (wire_has_chunks(&nbd_of(lane)->dialect) && request->command == CMD_READ);
    lane_send_one(lane, header,
                  chunk ? wire_chunk(header, &nbd_of(lane)->dialect, request, CHUNK_NONE, true, 0)
                        : wire_simple(header, request, 0));
}

void reply_error(struct iou_lane *lane, const struct request *request, uint32_t error, const char *text) {
    char message[MAX_HEADER + 6 + MAX_ERROR_TEXT];
    size_t length = strnlen(text, MAX_ERROR_TEXT), size;
    *request->told = error;
    if (!wire_has_chunks(&nbd_of(lane)->dialect)) {
        lane_send_one(lane, message, wire_simple(message, request, error));
        return;
    }
    size = wire_chunk(message, &nbd_of(lane)->dialect, request, CHUNK_ERROR, true, 6 + length);
    size += put32(message + size, error);
    size += put16(message + size, (uint16_t)length);
    memcpy(message + size, text, length);
    lane_send_one(lane, message, size + length);
}

/* ---- data ------------------------------------------------------------------------------------------------------- */

static size_t data_head(const struct iou_lane *lane, char *head, const struct request *request, uint64_t offset,
                        uint64_t length, bool done) {
    if (!wire_has_chunks(&nbd_of(lane)->dialect))
        return wire_simple(head, request, 0);
    size_t size = wire_chunk(head, &nbd_of(lane)->dialect, request, CHUNK_DATA, done, 8 + length);
    return size + put64(head + size, offset);
}

static size_t hole_head(const struct iou_lane *lane, char *head, const struct request *request, uint64_t offset,
                        uint64_t length, bool done) {
    size_t size = wire_chunk(head, &nbd_of(lane)->dialect, request, CHUNK_HOLE, done, 12);
    size += put64(head + size, offset);
    return size + put32(head + size, (uint32_t)length);
}

/* Whether the data starts with HOLE zeros. The first byte shows most data that does not. */
static bool starts_with_hole(const char *data, uint64_t length) {
    return length >= HOLE && *data == 0 && iou_is_zero(data, HOLE);
}

/* Return the end of the run that begins at start: a run of whole HOLE pieces of zeros, or of anything else. */
static uint64_t zeros_end(const char *data, uint64_t start, uint64_t length, bool hole) {
    uint64_t stop = start;
    while (stop < length && starts_with_hole(data + stop, length - stop) == hole)
        stop = min_u64(stop + HOLE, length);
    return stop;
}

/* Most bytes that are read again at a time for a client that pauses. */
#define SLOW_PIECE (64 * KIB)

/*
 * Read a piece again when the client reads, and send as much as it takes. The memory is the task's own, outside of
 * the quotas: the task has the turn to send, and must not wait for tasks that have memory and wait for their turn.
 * A connection has at most one such piece.
 */
static int send_piece_again(struct task *task, uint64_t offset, uint64_t size, uint64_t *sent) {
    struct iou_lane *lane = task->lane;
    lane_await_reader(lane);
    char *memory = aligned_alloc(PAGE_UNIT, SLOW_PIECE + PAGE_UNIT);
    if (!memory)
        return ENOMEM;
    struct iovec part = {.iov_base = memory + offset % PAGE_UNIT, .iov_len = size};
    int error = answer_fill(task, part.iov_base, offset, size).error ? EIO : 0;
    if (!error)
        *sent = lane_send_until_pause(lane, &part, 1);
    free(memory);
    return error;
}

/* Read data again and send it. Its head was sent, so an error breaks the connection. */
static void send_again(struct task *task, uint64_t offset, uint64_t length) {
    struct iou_lane *lane = task->lane;
    while (length && !lane->state.broken) {
        uint64_t sent = 0;
        int error = send_piece_again(task, offset, min_u64(length, SLOW_PIECE), &sent);
        if (error)
            lane_break(lane, error);
        offset += sent;
        length -= sent;
    }
}

/* Send a reply whose data is in the memory. If the client pauses, give the memory back and send the rest without it. */
static void send_reply_data(struct task *task, struct iovec *parts, unsigned count, struct memory **memory,
                            uint64_t offset) {
    struct iou_lane *lane = task->lane;
    uintptr_t start = (uintptr_t)place_in(*memory, offset), end = (uintptr_t)(*memory)->data + (*memory)->size;
    lane_send_until_pause(lane, parts, count);
    for (unsigned i = 0; i < count; i++) {
        uintptr_t at = (uintptr_t)parts[i].iov_base;
        if (parts[i].iov_len == 0)
            continue;
        if (*memory)
            lane_put_memory(lane, *memory);
        *memory = NULL;
        if (at >= start && at < end)
            send_again(task, offset + (at - start), parts[i].iov_len);
        else
            lane_send(lane, &parts[i], 1);
    }
}

static void reply_runs(struct task *task, const struct request *request, struct memory **memory, uint64_t offset,
                       uint64_t length, bool done) {
    struct iou_lane *lane = task->lane;
    char heads[MAX_RUNS][MAX_HEAD], *data = place_in(*memory, offset);
    struct iovec parts[2 * MAX_RUNS];
    unsigned runs = 0, count = 0;
    for (uint64_t start = 0, stop; start < length; start = stop) {
        bool hole = starts_with_hole(data + start, length - start);
        stop = zeros_end(data, start, length, hole);
        char *head = heads[runs++];
        bool last = done && stop == length;
        size_t size = (hole ? hole_head : data_head)(lane, head, request, offset + start, stop - start, last);
        parts[count++] = (struct iovec){.iov_base = head, .iov_len = size};
        if (!hole)
            parts[count++] = (struct iovec){.iov_base = data + start, .iov_len = stop - start};
    }
    send_reply_data(task, parts, count, memory, offset);
}

void reply_data(struct task *task, const struct request *request, struct memory **memory, uint64_t offset,
                uint64_t length, bool done) {
    const struct iou_lane *lane = task->lane;
    char head[MAX_HEAD];
    if (wire_has_chunks(&nbd_of(lane)->dialect) && !(request->flags & FLAG_DF) && length >= HOLE) {
        reply_runs(task, request, memory, offset, length, done);
        return;
    }
    struct iovec parts[] = {
        {.iov_base = head, .iov_len = data_head(lane, head, request, offset, length, done)},
        {.iov_base = place_in(*memory, offset), .iov_len = length},
    };
    send_reply_data(task, parts, 2, memory, offset);
}

/* ---- block status ----------------------------------------------------------------------------------------------- */

/* The status that a context reports: NBD_STATE_HOLE and NBD_STATE_ZERO, or dirty. */
#define STATUS_HOLE 3u
#define STATUS_DIRTY 1u

/* Write an extent. Returns its size. */
static size_t put_extent(char *place, bool extended, uint64_t length, uint64_t status) {
    size_t size = extended ? put64(place, length) : put32(place, (uint32_t)length);
    return size + (extended ? put64(place + size, status) : put32(place + size, (uint32_t)status));
}

/* Return the end of the run of records that have the same status in a context. *next: its first record, then the one
   after it. */
static uint64_t run_of(const iou_extent *extents, uint32_t count, uint64_t tells, uint32_t *next) {
    bool has_it = extents[*next].flags & tells;
    while (*next < count && (bool)(extents[*next].flags & tells) == has_it)
        (*next)++;
    return extents[*next - 1].end;
}

/* Write the extents of a context, from the records that begin at `start`; returns the size. *told: how many extents. An
   extent is not longer than its record, and may be written over it or before it. */
static size_t put_status(char *payload, bool extended, const iou_extent *extents, uint32_t count, uint64_t start,
                         uint64_t tells, uint32_t *told) {
    uint64_t most = extended ? UINT64_MAX : MAX_COMPACT_EXTENT, end;
    uint64_t is = tells == IOU_EXTENT_ZERO ? STATUS_HOLE : STATUS_DIRTY;
    size_t size = 0;
    for (uint32_t next = 0; next < count; start = end) {
        uint64_t status = extents[next].flags & tells ? is : 0;
        end = run_of(extents, count, tells, &next);
        size += put_extent(payload + size, extended, min_u64(end - start, most), status);
        (*told)++;
        if (end - start > most)
            break; /* an extent that is longer than its field can say must be the last one */
    }
    return size;
}

void reply_status(struct iou_lane *lane, const struct request *request, const iou_extent *extents, uint32_t count,
                  char *payload) {
    const struct nbd *nbd = nbd_of(lane);
    bool extended = nbd->dialect.flags & IOU_LANE_EXTENDED;
    for (uint32_t i = 0; i < nbd->contexts_count; i++) {
        char head[MAX_HEADER + 8];
        uint32_t told = 0;
        size_t length = put_status(payload, extended, extents, count, request->offset, nbd->contexts[i].tells, &told);
        size_t size = wire_chunk(head, &nbd->dialect, request, extended ? CHUNK_STATUS_EXT : CHUNK_STATUS,
                                 i + 1 == nbd->contexts_count, (extended ? 8 : 4) + length);
        size += put32(head + size, nbd->contexts[i].id);
        if (extended)
            size += put32(head + size, told);
        struct iovec parts[] = {{.iov_base = head, .iov_len = size}, {.iov_base = payload, .iov_len = length}};
        lane_send(lane, parts, 2);
    }
}
