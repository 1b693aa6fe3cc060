/* SPDX-License-Identifier: Apache-2.0 */

/* Who starts a lane, fetches what it tells, ends it, and sees that it ended as it should. */

#include "laneclient.h"

#include <sys/socket.h>

static const iou_lane_context ALLOCATION = {7, IOU_EXTENT_ZERO};
static const uint32_t ERRORS[] = {[EINVAL] = NBD_EINVAL, [ENOSPC] = NBD_ENOSPC};

static void start_lane(struct session *session, iou_lanes *lanes, int fd) {
    static char rest[LANE_STAGING];
    struct lane_client *client = &session->client;
    bool waits = client->ending == STALL || client->ending == HOLD;
    ssize_t length =
        below(&session->random, 2) ? recv(fd, rest, 1 + below(&session->random, sizeof(rest)), MSG_DONTWAIT) : 0;
    iou_nbd_options options = {
        .lane =
            {
                .fd = fd,
                .size = EXPORT_SIZE,
                .flags = client->flags,
                .timeout_ms = waits ? SHORT_TIMEOUT_MS : LONG_TIMEOUT_MS,
                .rest = rest,
                .rest_length = length > 0 ? (uint64_t)length : 0,
                .control = &session->control,
                .lease = &session->lease,
                .bucket = session->bucket = some_bucket(&session->random),
            },
        .contexts = &ALLOCATION,
        .contexts_count = 1,
        .errors_count = sizeof(ERRORS) / sizeof(*ERRORS),
        .errors = ERRORS,
    };
    session->control = (iou_control){0};
    session->lease = (iou_lease){.timeout = UINT64_C(1) << 40, .expires = UINT64_MAX};
    if (client->ending == EXPIRE) /* and is renewed for no time */
        session->lease = (iou_lease){.timeout = 1, .expires = now_ns() + below(&session->random, 30000000)};
    CHECK(iou_nbd_start(lanes, session->handle, &options, &session->lane) == 0);
}

void session_start(struct session *session, iou_lanes *lanes, iou_queue *queue, enum ending ending) {
    struct lane_client *client = &session->client;
    bool read_only;
    int fds[2], size = 1 + (int)below(&session->random, 100000);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    if (below(&session->random, 2))
        CHECK(setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) == 0);
    client->fd = fds[0];
    client_prepare(client, ending);
    client_start(client);
    read_only = client->flags & IOU_LANE_READ_ONLY;
    session->handle =
        session->shared ? session->shared : open_image(queue, session->path, read_only ? 0 : IOU_WRITABLE);
    session->started = now_ns();
    session->act_after = below(&session->random, min_u64(client->requests, 200) + 1);
    session->acted = false;
    start_lane(session, lanes, fds[1]);
    if (session->shared) {
        session->handle = NULL;
    } else if (below(&session->random, 2)) {
        close_image(queue, session->handle);
        session->handle = NULL;
    }
}

/* The owner's part of the end, when its time has come. */
static void act(struct session *session) {
    struct lane_client *client = &session->client;
    if (session->acted || client->ending < ABORT || client->count < session->act_after)
        return;
    session->acted = true;
    if (client->ending == ABORT)
        iou_lane_abort(session->lane);
    if (client->ending == CANCEL)
        __atomic_store_n(&session->control.canceled, 1, __ATOMIC_RELAXED);
    if (client->ending == REFUSE || client->ending == CANCEL)
        (client->ending == REFUSE && below(&session->random, 2) ? iou_lane_leave : iou_lane_refuse)(session->lane);
    if (below(&session->random, 8) == 0) /* as if that had not been enough */
        iou_lane_abort(session->lane);
}

static void fetch(struct session *session) {
    iou_lane_report reports[IOU_LANE_REPORTS];
    iou_range ranges[100];
    int count = iou_lane_reports(session->lane, reports, IOU_LANE_REPORTS);
    for (int i = 0; i < count; i++)
        CHECK(reports[i].kind > 0 && reports[i].kind <= IOU_EXTENTS);
    session->reports += (uint64_t)count;
    change_rate(session->bucket, &session->random);
    while ((count = iou_lane_counted(session->lane, ranges, 100)) > 0) {
        for (int i = 0; i < count; i++)
            client_told(&session->client, ranges[i].start, ranges[i].end);
        session->ranges += (uint64_t)count;
    }
}

static void check_end(const struct session *session, const iou_lane_stats *stats) {
    enum ending ending = session->client.ending;
    CHECK(stats->running == 0 && stats->storage_wait == 0);
    if (ending <= CUT || ending == OVERSIZE)
        CHECK(stats->error == 0);
    if (ending == GARBAGE)
        CHECK(stats->error == EPROTO);
    if (ending == HOLD)
        CHECK(stats->error == ETIMEDOUT);
}

static void end_session(struct session *session) {
    iou_lane_stats stats;
    iou_completion completion;
    fetch(session);
    iou_lane_get_stats(session->lane, &stats);
    check_end(session, &stats);
    CHECK(iou_lane_free(session->lane) == 0);
    end_bucket(session->bucket);
    client_join(&session->client);
    if (session->handle) /* the engine may have been stopped */
        CHECK(iou_execute(session->handle, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL, &completion) == 0);
    session->lane = NULL;
    session->served++;
}

void session_look_after(struct session *session) {
    iou_lane_stats stats;
    iou_running slowest;
    act(session);
    if (below(&session->random, 4) == 0)
        fetch(session);
    if (iou_lane_slowest(session->lane, &slowest))
        CHECK(slowest.kind >= IOU_READ && slowest.kind <= IOU_EXTENTS);
    iou_lane_get_stats(session->lane, &stats);
    CHECK(now_ns() - session->started < DEADLINE_MS * UINT64_C(1000000));
    if (stats.ended)
        end_session(session);
}
