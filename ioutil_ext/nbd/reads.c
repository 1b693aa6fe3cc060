/* SPDX-License-Identifier: Apache-2.0 */

/* The requests that return content of the image: READ and BLOCK_STATUS. */

#include "nbd/nbd.h"

/*
 * Most bytes of a piece of a READ if storage only copies. A socket holds 208 KiB, and its client sleeps while the
 * lane copies more. Measured with nbdcopy of 512 MiB out of tmpfs, requests of 256 KiB, on a quiet machine, 15 to 21
 * rounds. 1 connection: 277 ms with whole requests, 213 with 160 KiB, 210 with 128, 224 with 96; 4 connections: 181
 * with whole requests, 182 with 128 KiB, 211 with 64.
 */
#define QUICK_READ (128 * KIB)

/* Get memory for a reply. False: there is none, and an error was sent. */
static bool get_reply_memory(struct iou_lane *lane, const struct request *request, size_t size,
                             struct memory **memory) {
    int error = lane_get_memory(lane, size, MEMORY_WAIT, memory);
    if (error) {
        struct answer answer = answer_no_memory(lane, error);
        reply_error(lane, request, answer.error, answer.text);
    }
    return !error;
}

/*
 * Wait for the turn to send a message from the memory, which has `size` bytes; a short message needs none. False: the
 * client pauses, so the memory was given back meanwhile. The caller fills the new memory before the next call, unless
 * *error says that there is none. A task with the turn does not wait for memory: tasks that wait for the turn may have
 * it.
 */
static bool take_read_turn(struct iou_lane *lane, uint64_t message, struct memory **memory, size_t size, bool *turn,
                           int *error) {
    if (*turn || socket_has_room(lane, message) || (*turn = socket_take_turn_until_pause(lane)))
        return true;
    lane_put_memory(lane, *memory);
    socket_take_turn(lane);
    *error = lane_get_memory(lane, size, MEMORY_NOW, memory);
    *turn = !*error;
    if (*turn)
        return false;
    socket_give_turn(lane);
    *error = lane_get_memory(lane, size, MEMORY_WAIT, memory);
    if (*error)
        socket_take_turn(lane);
    *turn = *error;
    return false;
}

/* ---- READ ------------------------------------------------------------------------------------------------------- */

/* Read a piece and send it. *memory may be NULL afterwards. False: an error was sent. */
static bool send_piece(struct task *task, const struct request *request, struct memory **memory, size_t size,
                       uint64_t start, uint64_t length) {
    struct iou_lane *lane = task->lane;
    struct answer answer;
    bool turn = false;
    int error = 0;
    do
        answer = error ? answer_no_memory(lane, error) : answer_fill(task, place_in(*memory, start), start, length);
    while (!take_read_turn(lane, size + MAX_HEADER + 12, memory, size, &turn, &error));
    if (answer.error)
        reply_error(lane, request, answer.error, answer.text);
    else
        reply_data(task, request, memory, start, length, start + length == request->offset + request->length);
    if (turn)
        socket_give_turn(lane);
    return !answer.error;
}

/* If the reply must be one piece, read all data before any of it is sent: later it could not report an error. */
void read_run(struct task *task, const struct request *request) {
    struct iou_lane *lane = task->lane;
    bool may_cut = wire_has_chunks(&nbd_of(lane)->dialect) && !(request->flags & FLAG_DF);
    uint64_t piece = room_for(request->offset, request->length);
    if (may_cut)
        piece = min_u64(piece, operation_only_copies(lane) ? QUICK_READ : MEMORY_PIECE);
    struct memory *memory = NULL;
    uint64_t start = request->offset, left = request->length, length;
    bool goes_on = true;
    for (; goes_on && left; start += length, left -= length) {
        length = min_u64(piece - start % PAGE_UNIT, left);
        goes_on = (memory || get_reply_memory(lane, request, piece, &memory)) &&
                  send_piece(task, request, &memory, piece, start, length);
    }
    if (memory)
        lane_put_memory(lane, memory);
}

/* ---- BLOCK_STATUS ----------------------------------------------------------------------------------------------- */

static uint64_t extents_end(const struct request *request, const iou_extent *extents, uint32_t count) {
    return count ? extents[count - 1].end : request->offset;
}

/* Append an extent, or extend the last one if it is of the same kind. There is room for one. */
static uint32_t add_extent(const struct request *request, iou_extent *extents, uint32_t count, uint64_t length,
                           uint64_t flags) {
    uint64_t end = extents_end(request, extents, count) + length;
    if (length && count && extents[count - 1].flags == flags) {
        extents[count - 1].end = end;
        return count;
    }
    extents[count] = (iou_extent){.end = end, .flags = flags};
    return length ? count + 1 : count;
}

/* Add the rest of the range. Bytes past the end of the image are a hole, and have not changed. Bytes of a remote image
   that its server has not reported are data, and every bitmap marks them. Other bytes are missing if another program
   has made the file shorter: the reply ends before them, and the next request fails. */
static uint32_t add_rest(const struct iou_lane *lane, const struct request *request, iou_extent *extents, uint32_t most,
                         uint32_t count) {
    uint64_t start = extents_end(request, extents, count);
    uint64_t left = request->offset + request->length - start, size = lane->handle->image->size;
    if (count && start < size && !lane->handle->ops->remote)
        return count;
    uint64_t untold = start < size && lane->handle->ops->remote ? min_u64(left, size - start) : 0;
    count = add_extent(request, extents, count, untold, nbd_of(lane)->tells & ~(uint64_t)IOU_EXTENT_ZERO);
    return count < most ? add_extent(request, extents, count, left - untold, IOU_EXTENT_ZERO) : count;
}

/* Whether the lane's thread may do the request: one extent takes one or two calls, and no other request is known that
   would wait. */
static bool is_one_question(const struct iou_lane *lane, const struct request *request) {
    return request->flags & FLAG_REQ_ONE && lane->state.running == 1 && staged(&lane->staging) == 0;
}

/* Look at the extents once for all contexts, so that all of them show the same state of the image. */
static struct answer look_at_extents(struct task *task, const struct request *request, iou_extent *extents,
                                     uint32_t most, uint32_t *count) {
    uint64_t tells = nbd_of(task->lane)->tells;
    struct op op = {
        .kind = IOU_EXTENTS,
        .flags = tells & ~(uint64_t)IOU_EXTENT_ZERO ? IOU_DIRTY : 0,
        .offset = request->offset,
        .length = request->length,
        .buffer = extents,
        .buffer_size = most * sizeof(iou_extent),
        .tells = tells,
        .alone = is_one_question(task->lane, request),
    };
    struct answer answer = answer_run(task, &op);
    *count = op.result.count;
    if (*count < most)
        *count = add_rest(task->lane, request, extents, most, *count);
    return answer;
}

static void answer_status(struct iou_lane *lane, const struct request *request, struct answer answer,
                          const iou_extent *extents, uint32_t count, char *payload) {
    if (answer.error)
        reply_error(lane, request, answer.error, answer.text);
    else
        reply_status(lane, request, extents, count, payload);
}

_Static_assert(MAX_STATUS_EXTENTS * sizeof(iou_extent) == MEMORY_PIECE,
               "the extents of a reply fill one piece of memory");

/* Most bytes of a reply: a chunk for each context. */
static uint64_t status_size(const struct nbd *nbd, uint32_t count) {
    return nbd->contexts_count * (MAX_HEADER + 8 + (uint64_t)count * MAX_EXTENT);
}

/* With several contexts half of the memory is for their chunks. */
static void run_long_status(struct task *task, const struct request *request) {
    struct iou_lane *lane = task->lane;
    bool single = nbd_of(lane)->contexts_count == 1;
    uint32_t most = single ? MAX_STATUS_EXTENTS : MAX_STATUS_EXTENTS / 2, count = 0;
    struct memory *memory;
    if (!get_reply_memory(lane, request, MEMORY_PIECE, &memory))
        return;
    struct answer answer;
    bool turn = false;
    int error = 0;
    do
        answer = error ? answer_no_memory(lane, error)
                       : look_at_extents(task, request, (iou_extent *)(void *)memory->data, most, &count);
    while (!take_read_turn(lane, status_size(nbd_of(lane), count), &memory, MEMORY_PIECE, &turn, &error));
    char *records = memory ? memory->data : NULL;
    answer_status(lane, request, answer, (iou_extent *)(void *)records, count,
                  single || !records ? records : records + MEMORY_PIECE / 2);
    if (turn)
        socket_give_turn(lane);
    if (memory)
        lane_put_memory(lane, memory);
}

void read_status(struct task *task, const struct request *request) {
    iou_extent one;
    char payload[MAX_EXTENT];
    uint32_t count;
    if (!(request->flags & FLAG_REQ_ONE)) {
        run_long_status(task, request);
        return;
    }
    struct answer answer = look_at_extents(task, request, &one, 1, &count);
    answer_status(task->lane, request, answer, &one, count, payload);
}
