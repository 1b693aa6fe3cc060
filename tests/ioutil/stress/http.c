/* SPDX-License-Identifier: Apache-2.0 */

/* Lanes of HTTP: clients whose requests are known, on storage that works or does not, with every end. */

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <openssl/ssl.h>
#include <zstd.h>

#include "http/http.h"
#include "nbdserver.h"

#define SESSIONS 6u
#define AREA (7 * MIB + 123) /* of each session; neighbours share a block */
#define SIZE (SESSIONS * AREA)
#define TIMEOUT_MS 60u
#define TARGET "/images/x"
#define STRANGER "DELETE /images/x HTTP/1.1\r\nHost: x\r\n\r\n"

enum ending { STRANGE, IDLE, PART_OF_HEAD, PART_OF_BODY, STALL, CLOSE, REFUSE, ABORT, CANCEL, ENDINGS };

struct http_session {
    pthread_t thread;
    iou_lanes *lanes;
    iou_handle *handle;
    bool rough;
    unsigned number, rounds;
    uint64_t random, start;
    char *model, *data;
    int fd, other_fd;
    iou_tls_context *contexts[2]; /* of server and client; NULL: no TLS */
    iou_tls *ends[2];
    iou_lane *lane;
    iou_control control;
    iou_lease lease;
    iou_bucket *bucket; /* NULL: no limit on the rate */
    unsigned served, failed;
};

/* ---- the client ------------------------------------------------------------------------------------------------- */

/* Send or receive part, without waiting: what recv(2) and send(2) return. */
static ssize_t move(struct http_session *session, char *data, uint64_t length, bool sends) {
    if (!session->ends[1])
        return sends ? send(session->fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT)
                     : recv(session->fd, data, length, MSG_DONTWAIT);
    int64_t count = sends ? iou_tls_write(session->ends[1], data, length, below(&session->random, 2))
                          : iou_tls_read(session->ends[1], data, length);
    if (count >= 0)
        return (ssize_t)count;
    errno = count == IOU_TLS_WANTS_INPUT || count == IOU_TLS_WANTS_ROOM ? EAGAIN : (int)-count;
    return -1;
}

static bool has_ended(struct http_session *session) {
    iou_lane_report reports[IOU_LANE_REPORTS];
    iou_lane_stats stats = {0};
    CHECK(iou_lane_reports(session->lane, reports, IOU_LANE_REPORTS) >= 0);
    iou_lane_get_stats(session->lane, &stats);
    change_rate(session->bucket, &session->random);
    return stats.ended;
}

/* Wait until more can be moved. False: the lane has ended, and nothing can be. */
static bool await_more(struct http_session *session, bool sends) {
    short events = sends ? POLLOUT : POLLIN;
    struct pollfd polled[2] = {{.fd = session->fd, .events = events},
                               {.fd = iou_lane_fd(session->lane), .events = POLLIN}};
    CHECK(poll(polled, 2, DEADLINE_MS) > 0);
    return polled[0].revents || !has_ended(session) || poll(polled, 1, 0) == 1;
}

/* What TLS has taken in part comes again as it was. */
static bool move_piece(struct http_session *session, char *data, uint64_t length, bool sends) {
    while (length) {
        ssize_t moved;
        while ((moved = move(session, data, length, sends)) == -1 && errno == EAGAIN)
            if (!await_more(session, sends))
                return false;
        if (moved <= 0)
            return false;
        data += moved;
        length -= (uint64_t)moved;
    }
    return true;
}

static bool move_all(struct http_session *session, char *data, uint64_t length, bool sends) {
    while (length) {
        uint64_t piece = below(&session->random, 4) ? length : 1 + below(&session->random, length);
        if (!move_piece(session, data, piece, sends))
            return false;
        data += piece;
        length -= piece;
    }
    return true;
}

static bool send_all(struct http_session *session, const char *data, uint64_t length) {
    return move_all(session, (char *)(uintptr_t)data, length, true);
}

static bool receive_all(struct http_session *session, char *data, uint64_t length) {
    return move_all(session, data, length, false);
}

/* A head and its end; false: there is none. */
static bool receive_head(struct http_session *session, char *head, size_t size) {
    size_t length = 0;
    do {
        CHECK(length + 1 < size);
        if (!receive_all(session, head + length, 1))
            return false;
        head[++length] = 0;
    } while (length < 4 || memcmp(head + length - 4, "\r\n\r\n", 4) != 0);
    return true;
}

static bool is_done(struct http_session *session) {
    char head[500];
    if (!receive_head(session, head, sizeof(head)))
        return false;
    CHECK(strncmp(head, "HTTP/1.1 200 OK\r\nDate: ", 23) == 0);
    return true;
}

/* Mostly short. */
static void choose(struct http_session *session, uint64_t *offset, uint64_t *length) {
    static const uint64_t MOST[] = {100, 5000, 5000, 300000, 300000, 2 * MIB, AREA};
    *length = 1 + below(&session->random, MOST[below(&session->random, 7)]);
    *offset = below(&session->random, AREA - *length + 1);
}

static bool is_told_to_continue(struct http_session *session) {
    char head[100];
    if (!receive_head(session, head, sizeof(head)))
        return false;
    CHECK(strcmp(head, "HTTP/1.1 100 Continue\r\n\r\n") == 0);
    return true;
}

/* Return what the session has as a frame of zstd, some of them with a large window. */
static char *encoded(struct http_session *session, uint64_t length, uint64_t *size) {
    size_t most = ZSTD_compressBound(length);
    char *frame = malloc(most);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    CHECK(frame && context);
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, below(&session->random, 4) ? 19 : 23);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, below(&session->random, 2) ? 1 : 0);
    *size = ZSTD_compress2(context, frame, most, session->data, length);
    CHECK(!ZSTD_isError(*size));
    ZSTD_freeCCtx(context);
    return frame;
}

static bool put(struct http_session *session) {
    char head[500];
    uint64_t offset, length;
    bool expects = below(&session->random, 4) == 0, waits = below(&session->random, 2);
    choose(session, &offset, &length);
    for (uint64_t i = 0; i < length; i += 512)
        session->data[i] = (char)next_random(&session->random);
    uint64_t sent = length;
    char *body = below(&session->random, 3) ? session->data : encoded(session, length, &sent);
    snprintf(head, sizeof(head),
             "PUT " TARGET "%s HTTP/1.1\r\nHost: x\r\nContent-Range: bytes %llu-%llu/*\r\n"
             "Content-Length: %llu\r\n%s%s\r\n",
             below(&session->random, 8) ? "?flush=n" : "", (unsigned long long)(session->start + offset),
             (unsigned long long)(session->start + offset + length - 1), (unsigned long long)sent,
             expects ? "Expect: 100-continue\r\n" : "", body == session->data ? "" : "Content-Encoding: zstd\r\n");
    bool done = send_all(session, head, strlen(head)) && !(expects && waits && !is_told_to_continue(session)) &&
                send_all(session, body, sent) && !(expects && !waits && !is_told_to_continue(session)) &&
                is_done(session);
    if (body != session->data)
        free(body);
    if (done)
        memcpy(session->model + offset, session->data, length);
    return done;
}

static bool get(struct http_session *session) {
    char head[500], wanted[100];
    uint64_t offset, length;
    choose(session, &offset, &length);
    unsigned long long first = session->start + offset, last = first + length - 1;
    snprintf(head, sizeof(head), "GET " TARGET " HTTP/1.1\r\nrange: bytes=%llu-%llu\r\nHOST:\r\n\r\n", first, last);
    if (!send_all(session, head, strlen(head)) || !receive_head(session, head, sizeof(head)))
        return false;
    snprintf(wanted, sizeof(wanted), "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %llu-%llu/", first, last);
    CHECK(strncmp(head, wanted, strlen(wanted)) == 0);
    if (!receive_all(session, session->data, length))
        return false;
    CHECK(session->rough || memcmp(session->data, session->model + offset, length) == 0);
    return true;
}

static bool receive_and_drop(struct http_session *session, uint64_t length) {
    while (length) {
        uint64_t piece = min_u64(length, AREA);
        if (!receive_all(session, session->data, piece))
            return false;
        length -= piece;
    }
    return true;
}

/* All of the image, or all from a byte of this session's area on. What others have is not looked at. */
static bool get_much(struct http_session *session) {
    char head[500], wanted[200];
    bool whole = below(&session->random, 2);
    uint64_t offset = below(&session->random, AREA), first = whole ? 0 : session->start + offset;
    snprintf(head, sizeof(head), "GET " TARGET " HTTP/1.1\r\nrange: bytes=%llu-\r\nHOST:\r\norigin: x\r\n\r\n",
             (unsigned long long)first);
    snprintf(wanted, sizeof(wanted), "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %llu-%llu/9\r\nAllow: *\r\n",
             (unsigned long long)first, (unsigned long long)SIZE - 1);
    if (whole) {
        snprintf(head, sizeof(head), "GET " TARGET " HTTP/1.1\r\nHost: x\r\nOrigin: x\r\n\r\n");
        snprintf(wanted, sizeof(wanted), "HTTP/1.1 200 OK\r\nAllow: *\r\n");
        offset = 0;
    }
    if (!send_all(session, head, strlen(head)) || !receive_head(session, head, sizeof(head)))
        return false;
    CHECK(strncmp(head, wanted, strlen(wanted)) == 0);
    if (!receive_and_drop(session, session->start + offset - first) ||
        !receive_all(session, session->data, AREA - offset))
        return false;
    CHECK(session->rough || memcmp(session->data, session->model + offset, AREA - offset) == 0);
    return receive_and_drop(session, SIZE - session->start - AREA);
}

static bool patch(struct http_session *session) {
    char requests[2000];
    uint64_t offset, length;
    unsigned count = 1 + (unsigned)below(&session->random, 4);
    size_t size = 0;
    for (unsigned i = 0; i < count; i++) {
        char body[200];
        choose(session, &offset, &length);
        snprintf(body, sizeof(body), "{\"op\": \"zero\", \"offset\": %llu, \"size\" :%llu}",
                 (unsigned long long)(session->start + offset), (unsigned long long)length);
        size += (size_t)snprintf(requests + size, sizeof(requests) - size,
                                 "PATCH " TARGET " HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
                                 body);
        memset(session->model + offset, 0, length);
    }
    if (!send_all(session, requests, size))
        return false;
    while (count--)
        if (!is_done(session))
            return false;
    return true;
}

static bool flush(struct http_session *session) {
    static const char REQUEST[] =
        "PATCH " TARGET " HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{\"op\": \"flush\"}";
    return send_all(session, REQUEST, sizeof(REQUEST) - 1) && is_done(session);
}

static bool one_request(struct http_session *session) {
    if (below(&session->random, 64) == 0)
        return get_much(session);
    switch (below(&session->random, 8)) {
    case 0:
        return patch(session);
    case 1:
        return flush(session);
    case 2:
    case 3:
    case 4:
        return get(session);
    default:
        return put(session);
    }
}

/* ---- the owner -------------------------------------------------------------------------------------------------- */

/* On some connections. The server's end keeps a descriptor of its own, as its owner does. */
static void shake_hands(struct http_session *session, int fd) {
    session->ends[0] = session->ends[1] = NULL;
    if (below(&session->random, 2))
        return;
    CHECK((session->other_fd = dup(fd)) != -1);
    CHECK(iou_tls_new(session->contexts[0], session->other_fd, NULL, &session->ends[0]) == 0);
    CHECK(iou_tls_new(session->contexts[1], session->fd, "x", &session->ends[1]) == 0);
    int server = IOU_TLS_WANTS_INPUT, client = IOU_TLS_WANTS_INPUT;
    while (server || client) {
        client = iou_tls_handshake(session->ends[1]);
        server = iou_tls_handshake(session->ends[0]);
        CHECK((server == 0 || server == IOU_TLS_WANTS_INPUT) && (client == 0 || client == IOU_TLS_WANTS_INPUT));
    }
}

static void start(struct http_session *session, enum ending ending) {
    static const char DONE[] = "HTTP/1.1 200 OK\r\nDate: \4\r\n\r\n";
    static const char PARTIAL[] = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes \1-\2/9\r\n\5"
                                  "Content-Length: \3\r\nDate: \4\r\n\r\n";
    static const char WHOLE[] = "HTTP/1.1 200 OK\r\n\5Content-Length: \3\r\nDate: \4\r\n\r\n";
    static const char ORIGIN[] = "Allow: *\r\n";
    bool waits = ending == IDLE || ending == PART_OF_HEAD || ending == STALL;
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    session->fd = pair[0];
    session->other_fd = -1;
    shake_hands(session, pair[1]);
    session->control = (iou_control){0};
    session->lease = (iou_lease){.timeout = UINT64_C(1) << 40, .expires = UINT64_MAX, .number = (uintptr_t)session};
    iou_http_options options = {
        .lane = {.fd = pair[1],
                 .tls = session->ends[0],
                 .flags = IOU_LANE_COUNT_WRITES,
                 .number = session->number,
                 .size = SIZE,
                 .timeout_ms = waits ? TIMEOUT_MS : DEADLINE_MS,
                 .control = &session->control,
                 .lease = &session->lease,
                 .bucket = session->bucket = some_bucket(&session->random)},
        .target = TARGET,
        .target_length = strlen(TARGET),
        .done = DONE,
        .done_length = sizeof(DONE) - 1,
        .partial = PARTIAL,
        .partial_length = sizeof(PARTIAL) - 1,
        .whole = WHOLE,
        .whole_length = sizeof(WHOLE) - 1,
        .origin = ORIGIN,
        .origin_length = sizeof(ORIGIN) - 1,
    };
    CHECK(iou_http_start(session->lanes, session->handle, &options, &session->lane) == 0);
}

static void bring_about(struct http_session *session, enum ending ending) {
    char request[500];
    uint64_t part = below(&session->random, 3 * MIB);
    snprintf(request, sizeof(request),
             "PUT " TARGET " HTTP/1.1\r\nHost: x\r\nContent-Range: bytes %llu-*/*\r\nContent-Length: %llu\r\n\r\n",
             (unsigned long long)session->start, (unsigned long long)(3 * MIB));
    if (ending == STRANGE)
        send_all(session, STRANGER, strlen(STRANGER));
    if (ending == PART_OF_HEAD)
        send_all(session, request, 30);
    if (ending == PART_OF_BODY || ending == STALL || (ending >= CLOSE && below(&session->random, 2))) {
        send_all(session, request, strlen(request));
        memcpy(session->data, session->model, part);
        send_all(session, session->data, part);
    }
    if (ending == PART_OF_BODY)
        CHECK(shutdown(session->fd, SHUT_WR) == 0);
    if (ending == CLOSE)
        CHECK(shutdown(session->fd, SHUT_RDWR) == 0);
    if (ending == ABORT)
        iou_lane_abort(session->lane);
    if (ending == CANCEL)
        __atomic_store_n(&session->control.canceled, 1, __ATOMIC_SEQ_CST);
    if (ending == CANCEL || ending == REFUSE)
        iou_lane_refuse(session->lane);
    if (ending == REFUSE) /* what runs is finished, or its client leaves */
        shutdown(session->fd, SHUT_WR);
}

static void await_end(struct http_session *session) {
    struct pollfd polled = {.fd = iou_lane_fd(session->lane), .events = POLLIN};
    iou_lane_stats stats;
    iou_lane_report reports[IOU_LANE_REPORTS];
    iou_range ranges[100];
    iou_record oldest;
    do {
        if (iou_lane_oldest(session->lane, &oldest) == 1)
            CHECK(oldest.elapsed < DEADLINE_MS * UINT64_C(1000000));
        iou_lane_get_stats(session->lane, &stats);
        if (!stats.ended)
            CHECK(poll(&polled, 1, DEADLINE_MS) == 1);
        CHECK(iou_lane_reports(session->lane, reports, IOU_LANE_REPORTS) >= 0);
        while (iou_lane_counted(session->lane, ranges, 100) == 100)
            ;
    } while (!stats.ended);
}

static void check_end(struct http_session *session, enum ending ending) {
    static __thread char rest[IOU_LANE_MAX_STAGED];
    iou_http_end end;
    int length = iou_http_ended(session->lane, &end, rest);
    CHECK(length >= 0);
    if (ending == STRANGE)
        CHECK(end.reason == IOU_HTTP_OTHER && (size_t)length == strlen(STRANGER) &&
              memcmp(rest, STRANGER, (size_t)length) == 0);
    if (ending == IDLE)
        CHECK(end.reason == IOU_HTTP_IDLE && length == 0);
    if (ending == REFUSE && end.reason == IOU_HTTP_IDLE) /* nothing was taken of a request that has not begun */
        CHECK(length == 0 || (length >= 4 && memcmp(rest, "PUT ", 4) == 0));
    if (ending == PART_OF_HEAD)
        CHECK(end.reason == IOU_HTTP_IDLE && length <= 30);
    if (ending == PART_OF_BODY && !session->rough)
        CHECK(end.reason == IOU_HTTP_TRUNCATED && end.unread);
    if (ending == STALL && !session->rough)
        CHECK(end.reason == IOU_HTTP_BROKEN || end.unread == 0);
}

static void run_session(struct http_session *session) {
    enum ending ending = (enum ending)below(&session->random, ENDINGS);
    unsigned count = (unsigned)below(&session->random, 12);
    bool good = true;
    start(session, ending);
    while (good && count--) {
        good = one_request(session);
        session->served += good;
    }
    session->failed += !good;
    CHECK(good || session->rough || ending == IDLE || ending == PART_OF_HEAD || ending == STALL);
    if (good)
        bring_about(session, ending);
    await_end(session);
    if (good)
        check_end(session, ending);
    close(session->fd);
    CHECK(iou_lane_free(session->lane) == 0);
    end_bucket(session->bucket);
    for (unsigned i = 0; i < 2; i++)
        if (session->ends[i])
            iou_tls_free(session->ends[i]);
    if (session->other_fd != -1)
        close(session->other_fd);
}

/* Of any session. */
static void read_records(const struct http_session *session) {
    iou_record records[50];
    int count = iou_records_read(session->lanes, records, 50);
    for (int i = 0; i < count; i++) {
        uint64_t end = records[i].offset + records[i].length;
        CHECK(records[i].lane >= 1 && records[i].lane <= SESSIONS && end <= SIZE);
        CHECK(records[i].result == 0 || records[i].result == 200 ||
              (records[i].result == 206 && records[i].kind == IOU_READ));
        CHECK(records[i].result || records[i].error || records[i].kind == IOU_WRITE); /* a body that ended early */
    }
    iou_records_want(session->lanes, count < 50 ? 0 : UINT64_MAX); /* now and then they are not wanted */
}

static void *session_main(void *argument) {
    struct http_session *session = argument;
    while (session->rounds--) {
        run_session(session);
        read_records(session);
        if (session->rough)
            continue;
        /* What a client whose lane ended did may have happened or not. */
        iou_completion completion;
        CHECK(iou_execute(session->handle, IOU_READ, 0, session->start, AREA, session->model, AREA, NULL,
                          &completion) == 0);
    }
    return NULL;
}

static void make_contexts(iou_tls_context *contexts[2]) {
    char path[5000], reason[IOU_TLS_REASON];
    file_path(path, sizeof(path), "certificate", 0);
    make_certificate(path);
    iou_tls_policy server = {
        .chain_file = path, .key_file = path, .options = SSL_OP_IGNORE_UNEXPECTED_EOF, .server = 1};
    iou_tls_policy client = {0};
    CHECK(iou_tls_context_new(&server, &contexts[0], reason) == 0);
    CHECK(iou_tls_context_new(&client, &contexts[1], reason) == 0);
}

static void run_sessions(iou_engine *engine, iou_handle *handle, unsigned rounds, uint64_t seed, bool rough) {
    struct http_session sessions[SESSIONS];
    iou_lanes *lanes;
    unsigned served = 0, failed = 0;
    iou_tls_context *contexts[2];
    CHECK(iou_lanes_new(engine, 64 * MIB, &lanes) == 0);
    iou_records_want(lanes, 0);
    make_contexts(contexts);
    for (unsigned i = 0; i < SESSIONS; i++) {
        sessions[i] = (struct http_session){
            .lanes = lanes,
            .handle = handle,
            .number = i + 1,
            .rough = rough,
            .rounds = rounds,
            .random = seed + 2 * i,
            .start = i * AREA,
            .model = calloc(1, AREA),
            .data = calloc(1, AREA),
            .contexts = {contexts[0], contexts[1]},
        };
        CHECK(sessions[i].model && sessions[i].data);
        CHECK(pthread_create(&sessions[i].thread, NULL, session_main, &sessions[i]) == 0);
    }
    for (unsigned i = 0; i < SESSIONS; i++) {
        CHECK(pthread_join(sessions[i].thread, NULL) == 0);
        served += sessions[i].served;
        failed += sessions[i].failed;
        free(sessions[i].model);
        free(sessions[i].data);
    }
    CHECK(iou_lanes_free(lanes) == 0);
    iou_tls_context_free(contexts[0]);
    iou_tls_context_free(contexts[1]);
    printf("http %s: %u lanes, %u requests, %u that ended in a request\n", rough ? "rough" : "smooth",
           SESSIONS * rounds, served, failed);
}

void test_http(unsigned rounds, uint64_t seed) {
    char path[5000];
    iou_engine *engine;
    iou_queue *queue;
    file_path(path, sizeof(path), "http", 0);
    make_file(path, (off_t)SIZE);
    CHECK(iou_engine_new(8, 1000, &engine) == 0 && iou_queue_new(engine, &queue) == 0);
    iou_handle *handle = open_image(queue, path, IOU_WRITABLE);
    run_sessions(engine, handle, rounds, seed, false);
    iou_set_syscalls(&rough_syscalls);
    run_sessions(engine, handle, rounds, seed + 100, true);
    iou_set_syscalls(NULL);
    close_image(queue, handle);
    for (unsigned hostile = 0; hostile < 2; hostile++) {
        struct nbd_image image;
        nbd_image_start(&image, SIZE, hostile, seed + hostile);
        run_sessions(engine, image.handle, rounds, seed + 200, hostile);
        nbd_image_stop(&image);
    }
    stop_engine(engine);
    CHECK(iou_queue_free(queue) == 0 && iou_engine_free(engine) == 0);
}
