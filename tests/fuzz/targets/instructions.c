/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A lane with an instruction: one that contradicts itself is refused, one that goes too far ends before it has changed
 * anything, and any other is carried out however its body comes, in chunks and encoded or not. What is behind the body
 * is left.
 */

#include "fuzz.h"

#define LARGE (3 * MIB + 123) /* pieces are 1 MiB */
#define SMALL (70000u)

static const char ANSWER[] = "HTTP/1.1 299 Done\r\n\r\n";
static const char CONTINUE[] = "HTTP/1.1 100 Continue\r\n\r\n";

enum { READ_ONLY = 1, BIG = 4, SHORT_IMAGE = 8, SECURE = 16, FAULTY = 64 };

/* What is expected. */
struct model {
    bool read_only;
    bool good; /* it will be done */
    uint64_t size, image_size;
    size_t taken; /* bytes of the stream that are the body */
    struct bytes answers;
};

static char content[LARGE];

static void begin(void) {
    peers_begin();
}

/* ---- the model -------------------------------------------------------------------------------------------------- */

static bool has(const iou_instruction *said, unsigned flag) {
    return said->flags & flag;
}

static bool is_sound(const iou_instruction *said) {
    if (said->offset > INT64_MAX || said->length > INT64_MAX - said->offset || said->body > INT64_MAX)
        return false;
    if (said->kind == IOU_READ)
        return said->flags == 0 && said->body == 0;
    if (said->kind != IOU_WRITE)
        return false;
    if (has(said, IOU_INSTRUCTION_ENCODED))
        return said->length && !has(said, IOU_INSTRUCTION_UNBOUNDED) &&
               !(has(said, IOU_INSTRUCTION_CHUNKED) && said->body);
    if (has(said, IOU_INSTRUCTION_CHUNKED))
        return has(said, IOU_INSTRUCTION_UNBOUNDED) && !said->body && !said->length;
    return !has(said, IOU_INSTRUCTION_UNBOUNDED) && said->body == said->length;
}

static bool is_inside(const struct model *model, uint64_t offset, uint64_t length, uint64_t size) {
    (void)model;
    return length <= size && offset <= size - length;
}

/* Get the bytes of the body, without framing. False: they are not all there, or the framing is refused. */
static bool take_body(const iou_instruction *said, const struct bytes *stream, struct bytes *body, size_t *taken) {
    iou_chunks chunks = {0};
    uint64_t count;
    bytes_add(body, stream->data, stream->length);
    *taken = said->body;
    if (!has(said, IOU_INSTRUCTION_CHUNKED)) {
        bool whole = body->length >= said->body;
        body->length = min_u64(body->length, said->body);
        return whole;
    }
    int64_t made = iou_chunks_unframe(&chunks, body->data, body->length, &count);
    body->length = made < 0 ? 0 : (size_t)made;
    *taken = count;
    return made >= 0 && chunks.ended;
}

static bool put(struct model *model, const iou_instruction *said, const struct bytes *stream) {
    struct bytes body = {0};
    bool good = take_body(said, stream, &body, &model->taken);
    uint64_t length = has(said, IOU_INSTRUCTION_UNBOUNDED) ? body.length : said->length;
    good = good && is_inside(model, said->offset, length, model->size);
    if (good && has(said, IOU_INSTRUCTION_ENCODED))
        good = decode_frame((struct http_text){body.data, body.data + body.length}, content + said->offset, length);
    else if (good && length)
        memcpy(content + said->offset, body.data, length);
    if (good && length)
        model->image_size = max_u64(model->image_size, said->offset + length);
    bytes_free(&body);
    return good;
}

static bool carry_out(struct model *model, const iou_instruction *said, const struct bytes *stream) {
    bool writes = said->kind == IOU_WRITE;
    uint64_t size = writes ? model->size : min_u64(model->size, model->image_size);
    if ((writes && model->read_only) || !is_inside(model, said->offset, said->length, size))
        return false;
    if (has(said, IOU_INSTRUCTION_EXPECTS))
        bytes_add(&model->answers, CONTINUE, strlen(CONTINUE));
    if (writes && !put(model, said, stream))
        return false;
    bytes_add(&model->answers, ANSWER, strlen(ANSWER));
    if (!writes)
        bytes_add(&model->answers, content + said->offset, said->length);
    return true;
}

/* ---- the lane --------------------------------------------------------------------------------------------------- */

static size_t look(struct peer *peer, bool *complete) {
    const struct model *model = peer->own;
    *complete = peer->received.length >= model->answers.length;
    return peer->stream.length;
}

static void start(struct peer *peer, const struct model *model, uint32_t flags, size_t rest, iou_instruction *said) {
    iou_http_options options = {
        .lane = peer_options(peer, flags, model->size, rest),
        .target = "/images/x",
        .target_length = 9,
        .done = ANSWER,
        .done_length = strlen(ANSWER),
        .partial = ANSWER,
        .partial_length = strlen(ANSWER),
        .whole = ANSWER,
        .whole_length = strlen(ANSWER),
        .instruction = *said,
    };
    options.instruction.answer = ANSWER;
    options.instruction.answer_length = strlen(ANSWER);
    bool sound = is_sound(said);
    int error = iou_http_start(all_lanes, peer->handle, &options, &peer->lane);
    CHECK(error == (sound ? 0 : -EINVAL));
    if (sound)
        return;
    *said = (iou_instruction){.kind = IOU_READ}; /* so that there is a lane to end */
    options.instruction.kind = IOU_READ;
    options.instruction.flags = 0;
    options.instruction.offset = options.instruction.length = options.instruction.body = 0;
    CHECK(iou_http_start(all_lanes, peer->handle, &options, &peer->lane) == 0);
}

static void check_image(const struct model *model) {
    uint64_t size;
    const char *image = peer_image(&size);
    CHECK(size == model->image_size && memcmp(image, content, size) == 0);
}

static void check_done(struct peer *peer, const struct model *model, const struct bytes *unread) {
    const struct bytes *stream = &peer->stream, *got = &peer->received, *wanted = &model->answers;
    CHECK(got->length == wanted->length && (!got->length || memcmp(got->data, wanted->data, got->length) == 0));
    CHECK(unread->length == stream->length - model->taken);
    CHECK(!unread->length || memcmp(unread->data, stream->data + model->taken, unread->length) == 0);
    check_image(model);
}

static void check_end(struct peer *peer, const struct model *model, const iou_instruction *said) {
    iou_http_end end;
    struct bytes unread = {0};
    peer_end_http(peer, &end, &unread);
    bool broken = end.reason == IOU_HTTP_BROKEN && (peer->secure || said->kind == IOU_READ);
    if (!peer->faulty && model->good && !broken) {
        CHECK(end.reason == IOU_HTTP_DONE);
        check_done(peer, model, &unread);
    } else if (!peer->faulty && !broken) {
        CHECK(end.reason == IOU_HTTP_TRUNCATED || end.reason == IOU_HTTP_ENCODING || end.reason == IOU_HTTP_CHUNKS ||
              end.reason == IOU_HTTP_RANGE);
        CHECK(peer->received.length == model->answers.length);
    }
    bytes_free(&unread);
}

/* ---- inputs ----------------------------------------------------------------------------------------------------- */

/* Two bytes, and a third one with how far they are shifted, so that there are numbers of any size. */
static uint64_t take_number(struct input *input) {
    uint64_t number = take_byte(input) * 256;
    number += take_byte(input);
    return number << take_byte(input) % 64;
}

/* Options, how much the lane is given at its beginning, how the stream is cut, the instruction, and the stream. */
static void run(const char *data, size_t size) {
    struct input input = {data, data + size};
    unsigned options = take_byte(&input), rest = take_byte(&input), cut = take_byte(&input);
    struct peer peer = {.random = cut * UINT64_C(0x9E3779B97F4A7C15), .secure = options & SECURE, .look = look};
    struct model model = {.read_only = options & READ_ONLY, .size = options & BIG ? LARGE : SMALL};
    model.image_size = options & SHORT_IMAGE ? model.size / 3 : model.size;
    iou_instruction said = {.kind = 1 + take_byte(&input) % 8, .flags = take_byte(&input) % 64, .status = 299};
    said.offset = take_number(&input);
    said.length = take_number(&input);
    said.body = take_number(&input);
    peer.own = &model;
    peer_copy_fresh(content, model.size, model.image_size);
    peer_open(&peer, model.image_size, !model.read_only);
    if (options & FAULTY)
        peer_break_storage(&peer, take_byte(&input) % 8);
    expand(input, &peer.stream, 2 * LARGE);
    if (said.flags & 32) { /* seldom met by chance: a body that is as long as the stream */
        said.flags &= 31;
        said.body = peer.stream.length;
        said.length = has(&said, IOU_INSTRUCTION_ENCODED) ? said.length : said.body;
    }
    start(&peer, &model, options & READ_ONLY ? IOU_LANE_READ_ONLY : 0, rest * 16, &said);
    model.good = carry_out(&model, &said, &peer.stream);
    peer_serve(&peer);
    check_end(&peer, &model, &said);
    peer_close(&peer);
    bytes_free(&model.answers);
}

const struct target http_instruction_target = {.name = "http_instruction", .begin = begin, .run = run};
