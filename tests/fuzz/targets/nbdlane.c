/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A lane of NBD: however a stream of requests comes, each whole one is answered once, by a valid reply, with the data
 * that must be there.
 */

#include "fuzz.h"

#define LARGE (4 * MIB + 5000) /* pieces of a payload are 2 MiB */
#define SMALL (140000u)
#define MOST_ASKED 100u
#define MOST_MOVED (12 * MIB) /* that is read and zeroed */

/* The options that are not flags of a lane. */
enum { SHORT_IMAGE = 64, BIG = 128 };
enum { IN_ORDER = 1, SECURE = 2, FAULTY = 4, BITMAPS = 8 };

static const uint32_t ERRORS[] = {
    [EPERM] = NBD_EPERM, [EINVAL] = NBD_EINVAL, [ENOSPC] = NBD_ENOSPC, [ENOTSUP] = NBD_ENOTSUP};

static char content[LARGE];

/* What the stream asks for. */
struct plan {
    struct exchange exchange;
    struct asked asked[MOST_ASKED];
    uint64_t moved;
    bool garbage; /* ends it */
    bool whole;   /* no request came in part */
};

static void begin(void) {
    peers_begin();
}

/* ---- the plan --------------------------------------------------------------------------------------------------- */

static bool moves(const struct request *request) {
    return !request->error && (request->command == CMD_READ || request->command == CMD_WRITE_ZEROES);
}

/* Plan the next request. False: there is none, it ends the connection, or it is too much. */
static bool plan_next(struct plan *plan, const struct bytes *stream, size_t *at) {
    struct exchange *exchange = &plan->exchange;
    struct asked *asked = &plan->asked[exchange->count];
    struct request *request = &asked->request;
    size_t head = exchange->dialect.header_size;
    char *header = stream->data + *at;
    uint64_t number = exchange->count;
    plan->whole = stream->length == *at;
    if (stream->length - *at < head)
        return false;
    if ((plan->garbage = wire_parse(&exchange->dialect, header, request)))
        return false;
    if (request->command == CMD_DISC && !request->error) {
        plan->whole = true;
        return false;
    }
    memcpy(header + 8, &number, sizeof(number)); /* each has a cookie of its own */
    memcpy(&request->cookie, &number, sizeof(number));
    bool drained = !request->error || request->payload <= MAX_DRAINED;
    uint64_t payload = drained ? request->payload : 0;
    if (stream->length - *at - head < payload)
        return false;
    asked->payload = header + head;
    asked->end = *at += head + payload;
    plan->moved += moves(request) ? request->length : 0;
    exchange->count++;
    return drained;
}

/* What is too much is cut off. */
static void plan_all(struct plan *plan, struct bytes *stream) {
    size_t at = 0;
    plan->exchange.asked = plan->asked;
    while (plan->exchange.count < MOST_ASKED && plan->moved < MOST_MOVED && plan_next(plan, stream, &at))
        ;
    if (plan->exchange.count == MOST_ASKED || plan->moved >= MOST_MOVED)
        stream->length = at;
}

/* ---- the lane --------------------------------------------------------------------------------------------------- */

static size_t look(struct peer *peer, bool *complete) {
    struct exchange *exchange = peer->own;
    look_at_replies(exchange, &peer->received);
    *complete = exchange->answered == exchange->count;
    return *complete || !exchange->in_order ? peer->stream.length : exchange->asked[exchange->answered].end;
}

static void start(struct peer *peer, const struct exchange *exchange, size_t rest) {
    iou_nbd_options options = {
        .lane = peer_options(peer, exchange->dialect.flags, exchange->dialect.size, rest),
        .contexts = exchange->contexts,
        .contexts_count = exchange->contexts_count,
        .errors_count = sizeof(ERRORS) / sizeof(*ERRORS),
        .errors = ERRORS,
    };
    CHECK(iou_nbd_start(all_lanes, peer->handle, &options, &peer->lane) == 0);
}

/* Past its end it is zeros. */
static void check_image(const struct exchange *exchange) {
    uint64_t size;
    const char *image = peer_image(&size);
    CHECK(size <= exchange->dialect.size && memcmp(image, exchange->model, size) == 0);
    CHECK(iou_is_zero(exchange->model + size, exchange->dialect.size - size));
}

static void check_end(struct peer *peer, const struct plan *plan) {
    const struct exchange *exchange = &plan->exchange;
    iou_lane_stats stats;
    iou_lane_get_stats(peer->lane, &stats);
    CHECK(stats.running == 0 && stats.requests == exchange->count);
    CHECK(exchange->answered == exchange->count && exchange->looked_at == peer->received.length);
    if (!peer->secure)
        CHECK(stats.error == (plan->garbage ? EPROTO : 0));
    if (exchange->certain && plan->whole)
        check_image(exchange);
}

/* ---- inputs ----------------------------------------------------------------------------------------------------- */

/* Contexts are negotiated after structured replies or extended headers. */
static uint32_t flags_of(unsigned options) {
    const struct dialect dialect = {.flags = (options & 63) | IOU_LANE_COUNT_WRITES};
    return wire_has_chunks(&dialect) ? dialect.flags : dialect.flags & ~(uint32_t)IOU_LANE_STATUS;
}

/* Options, more of them, how much the lane is given at its beginning, how the stream is cut, and the stream. */
static void run(const char *data, size_t size) {
    static struct plan plan;
    struct input input = {data, data + size};
    unsigned options = take_byte(&input), more = take_byte(&input), rest = take_byte(&input), cut = take_byte(&input);
    bool read_only = options & IOU_LANE_READ_ONLY;
    struct peer peer = {.random = cut * UINT64_C(0x9E3779B97F4A7C15), .secure = more & SECURE, .look = look};
    plan = (struct plan){
        .exchange =
            {
                .dialect = {.size = options & BIG ? LARGE : SMALL,
                            .flags = flags_of(options),
                            .header_size = options & IOU_LANE_EXTENDED ? 32 : 28},
                .contexts = {{7, IOU_EXTENT_ZERO}, {8, IOU_EXTENT_DIRTY}, {9, 2 * IOU_EXTENT_DIRTY}},
                .contexts_count = more & BITMAPS ? 3 : 1,
                .in_order = more & IN_ORDER,
                .certain = (more & IN_ORDER || read_only) && !(more & FAULTY),
                .faulty = more & FAULTY,
                .model = content,
            },
    };
    uint64_t image_size = options & SHORT_IMAGE ? plan.exchange.dialect.size / 3 : plan.exchange.dialect.size;
    peer.own = &plan.exchange;
    peer_copy_fresh(content, plan.exchange.dialect.size, image_size);
    peer_open(&peer, image_size, !read_only);
    if (more & FAULTY)
        peer_break_storage(&peer, take_byte(&input) % 8);
    expand(input, &peer.stream, 2 * LARGE);
    plan_all(&plan, &peer.stream);
    size_t first = plan.exchange.in_order && plan.exchange.count ? plan.asked[0].end : peer.stream.length;
    start(&peer, &plan.exchange, min_u64(rest * 16, first));
    peer_serve(&peer);
    check_end(&peer, &plan);
    peer_close(&peer);
}

const struct target nbd_lane_target = {.name = "nbd_lane", .begin = begin, .run = run};
