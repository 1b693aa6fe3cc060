/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A lane of HTTP: however a stream of requests comes, it is answered as if it had come at once, one request after the
 * other, and what the lane does not serve is given back whole.
 */

#include "fuzz.h"

#define LARGE (3 * MIB + 123) /* pieces of a request are 1 MiB */
#define SMALL (70000u)
#define MOST_ANSWERED (12 * MIB)

static const char TARGET[] = "/images/x";
static const char DONE[] = "HTTP/1.1 200 OK\r\n\5\r\n";
static const char PARTIAL[] =
    "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes \1-\2/9\r\n\5Content-Length: \3\r\n\r\n";
static const char WHOLE[] = "HTTP/1.1 200 OK\r\n\5Content-Length: \3\r\n\r\n";
static const char ORIGIN[] = "Access-Control-Allow-Origin: *\r\n";

enum { READ_ONLY = 1, SPARSE = 2, BIG = 4, SHORT_IMAGE = 8, SECURE = 16, COUNTS = 32, FAULTY = 64 };

/* What is expected. */
struct model {
    bool read_only;
    bool certain; /* until a request that may fail, or did not come whole */
    uint64_t size, image_size;
    uint64_t requests;
    uint64_t missing; /* bytes of the body of the last one */
    iou_http_reason reason;
    struct http_text left; /* of the stream */
    struct bytes answers;
};

static char content[LARGE];

static void begin(void) {
    peers_begin();
}

/* ---- the model -------------------------------------------------------------------------------------------------- */

static void note_change(struct model *model, uint64_t offset, uint64_t length) {
    model->image_size = max_u64(model->image_size, offset + length);
}

static bool is_inside(const struct model *model, uint64_t offset, uint64_t length) {
    return length <= model->size && offset <= model->size - length;
}

static const char *origin(const struct http_plain *plain) {
    return plain->asks & IOU_ASKS_ORIGIN ? ORIGIN : "";
}

static void say(struct model *model, const char *text) {
    bytes_add(&model->answers, text, strlen(text));
}

static void say_done(struct model *model, const struct http_plain *plain) {
    say(model, "HTTP/1.1 200 OK\r\n");
    say(model, origin(plain));
    say(model, "\r\n");
}

static bool get(struct model *model, const struct http_plain *plain) {
    char text[300];
    uint64_t last = plain->part == HTTP_SPAN ? min_u64(plain->last, model->size - 1) : model->size - 1;
    if (plain->first >= model->size || model->image_size < model->size)
        return false;
    uint64_t length = last - plain->first + 1;
    if (plain->part == HTTP_ALL)
        snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\n%sContent-Length: %llu\r\n\r\n", origin(plain),
                 (unsigned long long)length);
    else
        snprintf(text, sizeof(text),
                 "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %llu-%llu/9\r\n%sContent-Length: %llu\r\n\r\n",
                 (unsigned long long)plain->first, (unsigned long long)last, origin(plain), (unsigned long long)length);
    model->left.at += plain->size;
    say(model, text);
    bytes_add(&model->answers, content + plain->first, length);
    return true;
}

bool decode_frame(struct http_text body, char *where, uint64_t length) {
    iou_zstd *decoder;
    iou_zstd_step step = {0};
    uint64_t memory;
    CHECK(iou_zstd_new(length, &decoder) == 0);
    int64_t head = iou_zstd_head(decoder, body.at, (uint64_t)(body.end - body.at), &memory);
    bool good = head >= 0 && memory;
    CHECK(!good || iou_zstd_admit(decoder, 1) == 0);
    while (good && !step.ended) {
        body.at += head;
        int error = iou_zstd_decode(decoder, body.at, (uint64_t)(body.end - body.at), where, length, &step);
        head = (int64_t)step.taken;
        where += step.made;
        length -= step.made;
        good = !error && (step.taken || step.made);
    }
    iou_zstd_free(decoder);
    return good;
}

/* After a frame that is bad, or not whole, nobody knows what was written. */
static bool put_encoded(struct model *model, const struct http_plain *plain, uint64_t length) {
    struct http_text body = {model->left.at, model->left.at + plain->length};
    uint64_t there = (uint64_t)(model->left.end - model->left.at);
    model->missing = there < plain->length ? plain->length - there : 0;
    model->certain = !model->missing && decode_frame(body, content + plain->first, length);
    model->left.at = model->missing ? model->left.end : body.end;
    if (model->certain) {
        note_change(model, plain->first, length);
        say_done(model, plain);
    }
    return true;
}

static bool put(struct model *model, const struct http_plain *plain) {
    uint64_t length = plain->encoded ? plain->last - plain->first + 1 : plain->length;
    if (model->read_only || !is_inside(model, plain->first, length))
        return false;
    model->left.at += plain->size;
    if (plain->expects)
        say(model, "HTTP/1.1 100 Continue\r\n\r\n");
    if (plain->encoded)
        return put_encoded(model, plain, length);
    uint64_t there = (uint64_t)(model->left.end - model->left.at);
    if (there < plain->length) {
        model->left.at = model->left.end;
        model->missing = plain->length - there;
        return true;
    }
    memcpy(content + plain->first, model->left.at, plain->length);
    note_change(model, plain->first, plain->length);
    model->left.at += plain->length;
    say_done(model, plain);
    return true;
}

/* MORE: a part of its body is not there. */
static enum http_found patch(struct model *model, const struct http_plain *plain) {
    struct http_text body = {model->left.at + plain->size, model->left.at + plain->size + plain->length};
    struct http_patch said;
    if (body.end > model->left.end)
        return HTTP_MORE;
    if (!http_parse_patch(body, &said) || model->read_only)
        return HTTP_OTHER;
    if (!said.is_flush && (said.size == 0 || !is_inside(model, said.offset, said.size)))
        return HTTP_OTHER;
    model->left.at = body.end;
    model->certain = !said.fast;
    if (!said.is_flush) {
        memset(content + said.offset, 0, said.size);
        note_change(model, said.offset, said.size);
    }
    say_done(model, plain);
    return HTTP_WHOLE;
}

static enum http_found answer(struct model *model) {
    struct http_text target = {TARGET, TARGET + strlen(TARGET)};
    struct http_plain plain;
    enum http_found found = http_find_plain(model->left, target, &plain);
    if (found != HTTP_WHOLE)
        return found;
    if (plain.method == HTTP_PATCH)
        return patch(model, &plain);
    return (plain.method == HTTP_GET ? get : put)(model, &plain) ? HTTP_WHOLE : HTTP_OTHER;
}

/* Answer all that is in the stream; a stream whose answers are too long ends there. */
static void predict(struct model *model, struct bytes *stream) {
    enum http_found found = HTTP_WHOLE;
    model->left = (struct http_text){stream->data, stream->data + stream->length};
    while (model->certain && !model->missing && model->answers.length < MOST_ANSWERED &&
           (found = answer(model)) == HTTP_WHOLE)
        model->requests += !model->missing;
    if (model->answers.length >= MOST_ANSWERED) {
        model->left.end = model->left.at;
        stream->length = (size_t)(model->left.end - stream->data);
    }
    model->reason = model->missing ? IOU_HTTP_TRUNCATED : found == HTTP_OTHER ? IOU_HTTP_OTHER : IOU_HTTP_IDLE;
}

/* ---- the lane --------------------------------------------------------------------------------------------------- */

static size_t look(struct peer *peer, bool *complete) {
    const struct model *model = peer->own;
    *complete = peer->received.length >= model->answers.length;
    return peer->stream.length;
}

static void start(struct peer *peer, const struct model *model, uint32_t flags, size_t rest) {
    iou_http_options options = {
        .lane = peer_options(peer, flags, model->size, rest),
        .target = TARGET,
        .target_length = strlen(TARGET),
        .done = DONE,
        .done_length = strlen(DONE),
        .partial = PARTIAL,
        .partial_length = strlen(PARTIAL),
        .whole = WHOLE,
        .whole_length = strlen(WHOLE),
        .origin = ORIGIN,
        .origin_length = strlen(ORIGIN),
    };
    CHECK(iou_http_start(all_lanes, peer->handle, &options, &peer->lane) == 0);
}

static bool is_at(const struct bytes *part, const struct bytes *whole, size_t place) {
    return part->length == 0 ||
           (part->length <= whole->length - place && memcmp(part->data, whole->data + place, part->length) == 0);
}

/* As far as both go: after what may fail, more or less may come than is known. */
static bool begin_alike(const struct bytes *one, const struct bytes *other) {
    struct bytes part = *one;
    part.length = min_u64(one->length, other->length);
    return is_at(&part, other, 0);
}

static bool is_end_of(const struct bytes *part, const struct bytes *whole) {
    return part->length <= whole->length && is_at(part, whole, whole->length - part->length);
}

static void check_image(const struct model *model) {
    uint64_t size;
    const char *image = peer_image(&size);
    CHECK(size == model->image_size && memcmp(image, content, size) == 0);
}

/* All of it is there. A client with TLS that leaves as soon as it has its answer may be seen to leave before. */
static void check_whole(struct peer *peer, const struct model *model, const iou_http_end *end, size_t unread) {
    iou_lane_stats stats;
    iou_lane_get_stats(peer->lane, &stats);
    CHECK(peer->received.length == model->answers.length);
    if (peer->secure && end->reason == IOU_HTTP_BROKEN)
        return;
    CHECK(end->reason == model->reason && stats.requests == model->requests);
    CHECK(unread == (size_t)(model->left.end - model->left.at));
    CHECK(!model->missing || end->unread == model->missing);
    if (!model->missing)
        check_image(model);
}

static void check_end(struct peer *peer, const struct model *model) {
    iou_http_end end;
    struct bytes unread = {0};
    peer_end_http(peer, &end, &unread);
    CHECK(begin_alike(&peer->received, &model->answers));
    if (end.reason != IOU_HTTP_BROKEN)
        CHECK(is_end_of(&unread, &peer->stream) && (peer->said_all || end.unread <= unread.length + model->missing));
    if (model->certain && !peer->faulty && !peer_was_slow(peer))
        check_whole(peer, model, &end, unread.length);
    bytes_free(&unread);
}

/* ---- inputs ----------------------------------------------------------------------------------------------------- */

/* Options, how much the lane is given at its beginning, how the stream is cut, and the stream. */
static void run(const char *data, size_t size) {
    struct input input = {data, data + size};
    unsigned options = take_byte(&input), rest = take_byte(&input), cut = take_byte(&input);
    struct peer peer = {.random = cut * UINT64_C(0x9E3779B97F4A7C15), .secure = options & SECURE, .look = look};
    struct model model = {.read_only = options & READ_ONLY, .certain = true, .size = options & BIG ? LARGE : SMALL};
    model.image_size = options & SHORT_IMAGE ? model.size / 3 : model.size;
    uint32_t flags = (options & READ_ONLY ? IOU_LANE_READ_ONLY : 0) | (options & SPARSE ? IOU_LANE_SPARSE : 0) |
                     (options & COUNTS ? IOU_LANE_COUNT_READS | IOU_LANE_COUNT_WRITES : 0);
    peer.own = &model;
    peer_copy_fresh(content, model.size, model.image_size);
    peer_open(&peer, model.image_size, !model.read_only);
    if (options & FAULTY)
        peer_break_storage(&peer, take_byte(&input) % 8);
    expand(input, &peer.stream, 2 * LARGE);
    predict(&model, &peer.stream);
    start(&peer, &model, flags, rest * 16);
    peer_serve(&peer);
    check_end(&peer, &model);
    peer_close(&peer);
    bytes_free(&model.answers);
}

const struct target http_lane_target = {.name = "http_lane", .begin = begin, .run = run};
