/* SPDX-License-Identifier: Apache-2.0 */

/* What a request does: operations on the image, and their end as a reply. */

#include <errno.h>
#include <string.h>

#include "nbd.h"

/* What clients are told; of a fault of ours, the detail is in the log only. */
#define FAILED "the server failed to perform the operation"
#define ENDED "the transfer has ended"
#define NOT_FAST "the storage has no fast way to zero this"
#define OUTSIDE "the range is not inside the image"
#define NO_MEMORY "there is no memory for so long a range"

/*
 * What is read at once where storage does not sleep: a socket holds 208 KiB, and its client sleeps while we copy more.
 * nbdcopy of 512 MiB out of tmpfs, requests of 256 KiB, quiet machine, 15 to 21 rounds, 1 connection: 277 ms whole, 213
 * with 160 KiB, 210 with 128, 224 with 96; 4 connections: 181, 182 with 128, 211 with 64.
 */
#define QUICK_READ (128 * KIB)

/*
 * What is written at once there, of what has all been received. The other way, 15 rounds, 1 connection: 288 ms whole,
 * 230 with 64 KiB; in another run 178, 194 and 206 with 32, 64 and 128 KiB; 4 connections: 211 whole, 206 with 64; 187,
 * 189 and 196.
 */
#define QUICK_WRITE (64 * KIB)

static uint32_t kind_of(const struct request *request) {
    static const uint32_t KINDS[COMMANDS] = {
        [CMD_READ] = IOU_READ, [CMD_WRITE] = IOU_WRITE,       [CMD_FLUSH] = IOU_FLUSH,
        [CMD_TRIM] = IOU_TRIM, [CMD_WRITE_ZEROES] = IOU_ZERO, [CMD_BLOCK_STATUS] = IOU_EXTENTS,
    };
    return KINDS[request->command];
}

bool request_is_quick(struct iou_lane *lane, const struct request *request) {
    if (request->error || request->length > LANE_PIECE)
        return request->error != 0;
    if (request->flags & FLAG_FUA && request->command != CMD_READ && !operation_is_quick(lane, IOU_FLUSH))
        return false;
    return operation_is_quick(lane, kind_of(request));
}

/* ---- operations ------------------------------------------------------------------------------------------------- */

/* Expired and cancelled look the same; the connection ends with it. */
static struct answer refuse(struct iou_lane *lane) {
    lane->refusing = true;
    return (struct answer){NBD_ESHUTDOWN, ENDED};
}

/* What is said of an operation that has ended. */
static struct answer answer_of(struct iou_lane *lane, const struct op *op) {
    const struct nbd *nbd = nbd_of(lane);
    uint32_t error = (uint32_t)op->result.error;
    bool refused = error == ENOTSUP && op->flags & IOU_FAST_ONLY; /* as asked: no fault of the storage */
    lane_renew(lane);
    counts_report(lane, op, error == ECANCELED || refused ? 0 : (int)error);
    if (error == 0)
        return (struct answer){0, NULL};
    if (error == ECANCELED)
        return refuse(lane);
    if (refused)
        return (struct answer){NBD_ENOTSUP, NOT_FAST};
    if (error == ENODATA && op->result.syscall == IOU_SYS_NONE) /* others have made the image shorter */
        return (struct answer){NBD_EINVAL, OUTSIDE};
    uint32_t known = error < nbd->errors_count ? nbd->errors[error] : 0;
    return (struct answer){known ? known : NBD_EIO, FAILED};
}

static struct answer run_operation(struct lane_thread *thread, struct op *op) {
    operation_run(thread, op);
    return answer_of(thread->lane, op);
}

static void reply(struct iou_lane *lane, const struct request *request, struct answer answer) {
    if (answer.error)
        reply_error(lane, request, answer.error, answer.text);
    else
        reply_success(lane, request);
}

struct answer request_no_memory(struct iou_lane *lane) {
    return lane_refuses(lane) ? refuse(lane) : (struct answer){NBD_EOVERFLOW, NO_MEMORY};
}

/* Memory for what is answered. NULL: there is none, and that was answered. */
static struct memory *get_memory(struct iou_lane *lane, const struct request *request, size_t size) {
    struct memory *memory = memory_get(lane, size, true);
    if (!memory)
        reply(lane, request, request_no_memory(lane));
    return memory;
}

/*
 * Wait for the turn to send what is in the memory. False: the client pauses, so it was given back meanwhile, and is to
 * be filled again before the next call; NULL: there is none. Who has the turn does not wait for memory: others may have
 * it that wait for the turn.
 */
static bool take_turn(struct iou_lane *lane, struct memory **memory, size_t size, bool *turn) {
    if (*turn || (*turn = socket_take_turn_until_pause(lane)))
        return true;
    memory_put(lane, *memory);
    socket_take_turn(lane);
    *memory = memory_get(lane, size, false);
    *turn = *memory;
    if (*turn)
        return false;
    socket_give_turn(lane);
    *memory = memory_get(lane, size, true);
    if (!*memory)
        socket_take_turn(lane);
    *turn = !*memory;
    return false;
}

/* ---- READ ------------------------------------------------------------------------------------------------------- */

/* Fill with what the image has, and zeros past its end. */
static struct answer fill(struct lane_thread *thread, char *data, uint64_t offset, uint64_t length) {
    uint64_t size = thread->lane->handle->image->size;
    uint64_t inside = offset < size ? min_u64(length, size - offset) : 0;
    struct op op = {.kind = IOU_READ, .offset = offset, .length = inside, .buffer = data};
    memset(data + inside, 0, length - inside);
    return inside ? run_operation(thread, &op) : (struct answer){0, NULL};
}

/* Read a piece and send it. False: an error was sent. */
static bool send_piece(struct lane_thread *thread, const struct request *request, struct memory **memory, size_t size,
                       uint64_t start, uint64_t length) {
    struct iou_lane *lane = thread->lane;
    struct answer answer;
    bool turn = false;
    do
        answer = *memory ? fill(thread, place_in(*memory, start), start, length) : request_no_memory(lane);
    while (!take_turn(lane, memory, size, &turn));
    if (answer.error)
        reply_error(lane, request, answer.error, answer.text);
    else
        reply_data(lane, request, place_in(*memory, start), start, length,
                   start + length == request->offset + request->length);
    socket_give_turn(lane);
    return !answer.error;
}

/* A reply that may not be cut is read whole before any of it is sent: later nothing could be said of an error. */
static void run_read(struct lane_thread *thread, const struct request *request) {
    struct iou_lane *lane = thread->lane;
    bool may_cut = wire_has_chunks(&nbd_of(lane)->dialect) && !(request->flags & FLAG_DF);
    uint64_t piece = room_for(request->offset, request->length);
    if (may_cut)
        piece = min_u64(piece, operation_is_quick(lane, IOU_READ) ? QUICK_READ : LANE_PIECE);
    struct memory *memory = get_memory(lane, request, piece);
    uint64_t start = request->offset, left = request->length, length;
    bool goes_on = memory;
    for (; goes_on && left; start += length, left -= length) {
        length = min_u64(piece - start % PAGE_UNIT, left);
        goes_on = send_piece(thread, request, &memory, piece, start, length);
    }
    if (memory)
        memory_put(lane, memory);
}

/* ---- WRITE ------------------------------------------------------------------------------------------------------ */

static void check_allowed(struct iou_lane *lane, struct payload *payload) {
    if (!payload->answer.error && lane_refuses(lane))
        payload->answer = refuse(lane);
}

static void set_write(struct op *op, const struct payload *payload, bool fua) {
    *op = (struct op){
        .kind = IOU_WRITE,
        .flags = fua ? IOU_FUA : 0,
        .offset = payload->offset,
        .length = payload->length,
        .buffer = payload->data,
    };
}

void request_write_piece(struct lane_thread *thread, struct payload *payload) {
    struct op op;
    check_allowed(thread->lane, payload);
    if (payload->answer.error)
        return;
    set_write(&op, payload, false);
    payload->answer = run_operation(thread, &op);
}

/*
 * What is written next. Between two parts the leader takes what the client has sent meanwhile, so that the client need
 * not sleep. Nobody else does, and from storage that has begun to sleep the leader is to be relieved. 0: the rest.
 */
static uint64_t next_part(const struct iou_lane *lane, const struct op *op, bool leads) {
    return leads && operation_is_quick(lane, IOU_WRITE) ? QUICK_WRITE - op_position(op) % PAGE_UNIT : 0;
}

static struct answer write_parts(struct lane_thread *thread, struct op *op, bool leads) {
    struct iou_lane *lane = thread->lane;
    op->most = next_part(lane, op, leads);
    while (!operation_turn(thread, op)) {
        if (leads && (leads = turn_end(thread))) {
            receive_ahead(lane);
            turn_begin(thread);
        }
        op->most = next_part(lane, op, leads);
    }
    operation_end(lane, op);
    return answer_of(lane, op);
}

/* Write the payload, unless it is told already why not, and answer. */
static void end_payload(struct lane_thread *thread, const struct request *request, struct payload *payload,
                        struct op *op, bool leads) {
    struct iou_lane *lane = thread->lane;
    if (op->kind)
        payload->answer = write_parts(thread, op, leads);
    if (payload->memory)
        memory_put(lane, payload->memory);
    reply(lane, request, payload->answer);
}

/* ---- the others ------------------------------------------------------------------------------------------------- */

static uint32_t zero_flags(const struct iou_lane *lane, const struct request *request) {
    bool keep = request->flags & FLAG_NO_HOLE || !(lane->flags & IOU_LANE_SPARSE);
    return (keep ? IOU_ALLOCATE : 0) | (request->flags & FLAG_FAST_ZERO ? IOU_FAST_ONLY : 0);
}

static struct answer run_flush(struct lane_thread *thread) {
    struct op op = {.kind = IOU_FLUSH};
    return run_operation(thread, &op);
}

/* What lies past the end of the image is a hole. */
static uint32_t add_rest(const struct request *request, iou_extent *extents, uint32_t count) {
    iou_extent *last = count ? &extents[count - 1] : NULL;
    uint64_t start = last ? last->start + last->length : request->offset;
    uint64_t left = request->offset + request->length - start;
    if (left == 0)
        return count;
    if (last && last->hole) {
        last->length += left;
        return count;
    }
    extents[count] = (iou_extent){.start = start, .length = left, .hole = 1};
    return count + 1;
}

static struct answer look_at_extents(struct lane_thread *thread, const struct request *request, iou_extent *extents,
                                     uint32_t most, uint32_t *count) {
    struct op op = {
        .kind = IOU_EXTENTS,
        .offset = request->offset,
        .length = request->length,
        .buffer = extents,
        .buffer_size = most * sizeof(iou_extent),
    };
    struct answer answer = run_operation(thread, &op);
    *count = op.result.count < most ? add_rest(request, extents, op.result.count) : op.result.count;
    return answer;
}

static void answer_status(struct iou_lane *lane, const struct request *request, struct answer answer,
                          iou_extent *extents, uint32_t count) {
    if (answer.error)
        reply_error(lane, request, answer.error, answer.text);
    else
        reply_status(lane, request, extents, count);
}

static void run_long_status(struct lane_thread *thread, const struct request *request) {
    struct iou_lane *lane = thread->lane;
    size_t size = MAX_STATUS_EXTENTS * sizeof(iou_extent);
    struct memory *memory = get_memory(lane, request, size);
    uint32_t count = 0;
    if (!memory)
        return;
    struct answer answer;
    bool turn = false;
    do
        answer = !memory
                     ? request_no_memory(lane)
                     : look_at_extents(thread, request, (iou_extent *)(void *)memory->data, MAX_STATUS_EXTENTS, &count);
    while (!take_turn(lane, &memory, size, &turn));
    answer_status(lane, request, answer, memory ? (iou_extent *)(void *)memory->data : NULL, count);
    socket_give_turn(lane);
    if (memory)
        memory_put(lane, memory);
}

static void run_status(struct lane_thread *thread, const struct request *request) {
    iou_extent one;
    uint32_t count;
    if (!(request->flags & FLAG_REQ_ONE)) {
        run_long_status(thread, request);
        return;
    }
    struct answer answer = look_at_extents(thread, request, &one, 1, &count);
    answer_status(thread->lane, request, answer, &one, count);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

/* A ticket that is not sparse keeps its storage: nothing is trimmed. */
static bool changes_nothing(const struct iou_lane *lane, const struct request *request) {
    return request->length == 0 || (request->command == CMD_TRIM && !(lane->flags & IOU_LANE_SPARSE));
}

static void set_change(struct op *op, const struct iou_lane *lane, const struct request *request) {
    bool zeroes = request->command == CMD_WRITE_ZEROES;
    *op = (struct op){
        .kind = zeroes ? IOU_ZERO : IOU_TRIM,
        .flags = (request->flags & FLAG_FUA ? IOU_FUA : 0) | (zeroes ? zero_flags(lane, request) : 0),
        .offset = request->offset,
        .length = request->length,
    };
}

void request_begin(struct iou_lane *lane, const struct request *request, struct payload *payload, struct op *op) {
    op->kind = 0;
    if (request->error)
        return;
    check_allowed(lane, payload);
    if (payload->answer.error)
        return;
    if (payload->memory)
        set_write(op, payload, request->flags & FLAG_FUA);
    else if ((request->command == CMD_WRITE_ZEROES || request->command == CMD_TRIM) && !changes_nothing(lane, request))
        set_change(op, lane, request);
    if (op->kind)
        operation_begin(lane, op);
}

static void run_allowed(struct lane_thread *thread, const struct request *request, struct op *op) {
    struct iou_lane *lane = thread->lane;
    if (request->command == CMD_FLUSH)
        reply(lane, request, run_flush(thread));
    else if (request->command == CMD_CACHE || request->length == 0)
        reply_success(lane, request); /* images are read past the page cache: there is nothing to fill */
    else if (request->command == CMD_READ)
        run_read(thread, request);
    else if (op->kind)
        reply(lane, request, run_operation(thread, op));
    else if (request->command == CMD_TRIM)
        reply(lane, request, request->flags & FLAG_FUA ? run_flush(thread) : (struct answer){0, NULL});
    else
        run_status(thread, request);
}

void request_run(struct lane_thread *thread, const struct request *request, struct payload *payload, struct op *op,
                 bool leads) {
    if (request->error)
        reply_error(thread->lane, request, request->error, request->text);
    else if (payload->memory || payload->answer.error)
        end_payload(thread, request, payload, op, leads);
    else
        run_allowed(thread, request, op);
}

void request_end(struct iou_lane *lane) {
    if (atomic_fetch_sub(&lane->running, 1) == 1 && lane->refusing)
        lane_wake(lane);
}
