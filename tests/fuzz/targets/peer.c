/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A lane on an image in memory, and a client that sends a stream in pieces, most of them when the lane has taken the
 * one before.
 */

#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define TIMEOUT_MS 100000
#define MEMORY (64 * MIB)
#define LARGEST (8 * MIB) /* image */

#define MOST_PIECES 12u

/* So long a piece may lie there before the next one follows: the lane has other things to do. */
#define PATIENCE_NS (2 * UINT64_C(1000000))

iou_lanes *all_lanes;
static iou_engine *engine;
static iou_tls_context *contexts[2];
static int image_fd;
static char *image, image_path[100];

/* ---- images ----------------------------------------------------------------------------------------------------- */

/* Data, and zeros that are long enough for a hole in a reply of NBD. */
#define IMAGE_DATA (64 * KIB)
#define IMAGE_PERIOD (192 * KIB)

static char fresh[LARGEST];

static void make_fresh(void) {
    for (uint64_t i = 0; i < LARGEST; i++)
        fresh[i] = i % IMAGE_PERIOD < IMAGE_DATA ? (char)(1 + i % 251) : 0;
}

/* What an image of this size is, and what lies past its end. */
void peer_copy_fresh(char *content, uint64_t size, uint64_t image_size) {
    memcpy(content, fresh, image_size);
    memset(content + image_size, 0, size - image_size);
}

static void fill(uint64_t size) {
    for (uint64_t start = 0; start < size; start += IMAGE_PERIOD) {
        uint64_t length = min_u64(IMAGE_DATA, size - start);
        CHECK(pwrite(image_fd, fresh + start, length, (off_t)start) == (ssize_t)length);
    }
}

static iou_handle *open_fresh(uint64_t size, bool writable) {
    iou_completion completion;
    CHECK(size <= LARGEST && ftruncate(image_fd, 0) == 0 && ftruncate(image_fd, (off_t)size) == 0);
    fill(size);
    CHECK(iou_execute(NULL, IOU_OPEN, writable ? IOU_WRITABLE : 0, 0, 0, image_path, 0, NULL, &completion) == 0);
    return completion.handle;
}

const char *peer_image(uint64_t *size) {
    off_t end = lseek(image_fd, 0, SEEK_END);
    CHECK(end >= 0 && (uint64_t)end <= LARGEST);
    *size = (uint64_t)end;
    return image;
}

/* ---- storage that fails once ------------------------------------------------------------------------------------ */

static atomic_int calls_left; /* before it does; negative: none is to fail, or one has */

static bool fails(void) {
    errno = EIO;
    return calls_left >= 0 && calls_left-- == 0;
}

static ssize_t faulty_pread(int fd, void *buffer, size_t length, int64_t offset) {
    return fails() ? -1 : pread(fd, buffer, length, offset);
}

static ssize_t faulty_pwrite(int fd, const void *buffer, size_t length, int64_t offset) {
    return fails() ? -1 : pwrite(fd, buffer, length, offset);
}

static int faulty_fallocate(int fd, int mode, int64_t offset, int64_t length) {
    return fails() ? -1 : fallocate(fd, mode, offset, length);
}

static const iou_syscalls FAULTY = {
    .pread = faulty_pread,
    .pwrite = faulty_pwrite,
    .fallocate = faulty_fallocate,
};

void peer_break_storage(struct peer *peer, unsigned calls) {
    peer->faulty = true;
    calls_left = (int)calls;
}

/* ---- what all have in common ------------------------------------------------------------------------------------ */

static void make_contexts(void) {
    char path[] = "/tmp/imageio-fuzz-XXXXXX", reason[IOU_TLS_REASON];
    int fd = mkstemp(path);
    CHECK(fd != -1 && close(fd) == 0);
    make_certificate(path);
    iou_tls_policy server = {
        .chain_file = path, .key_file = path, .options = SSL_OP_IGNORE_UNEXPECTED_EOF, .server = 1};
    iou_tls_policy client = {0};
    CHECK(iou_tls_context_new(&server, &contexts[0], reason) == 0);
    CHECK(iou_tls_context_new(&client, &contexts[1], reason) == 0);
    CHECK(unlink(path) == 0);
}

void peers_begin(void) {
    make_fresh();
    iou_set_syscalls(&FAULTY);
    calls_left = -1;
    image_fd = memfd_create("image", MFD_CLOEXEC);
    CHECK(image_fd != -1);
    image = mmap(NULL, LARGEST, PROT_READ, MAP_SHARED, image_fd, 0);
    CHECK(image != MAP_FAILED);
    snprintf(image_path, sizeof(image_path), "/proc/self/fd/%d", image_fd);
    CHECK(iou_engine_new(8, 1000, &engine) == 0);
    CHECK(iou_lanes_new(engine, MEMORY, &all_lanes) == 0);
    make_contexts();
}

/* ---- the connection --------------------------------------------------------------------------------------------- */

/* The server's TLS has a descriptor of its own, as with its owner. */
static void shake_hands(struct peer *peer) {
    int server = IOU_TLS_WANTS_INPUT, client = IOU_TLS_WANTS_INPUT;
    CHECK(iou_tls_new(contexts[0], peer->owners_fd, NULL, &peer->ends[0]) == 0);
    CHECK(iou_tls_new(contexts[1], peer->fd, "x", &peer->ends[1]) == 0);
    while (server || client) {
        client = iou_tls_handshake(peer->ends[1]);
        server = iou_tls_handshake(peer->ends[0]);
        CHECK((server == 0 || server == IOU_TLS_WANTS_INPUT) && (client == 0 || client == IOU_TLS_WANTS_INPUT));
    }
}

void peer_open(struct peer *peer, uint64_t image_size, bool writable) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    peer->fd = pair[0];
    peer->lanes_fd = pair[1];
    CHECK((peer->owners_fd = dup(pair[1])) != -1);
    peer->handle = open_fresh(image_size, writable);
    peer->lease = (iou_lease){.timeout = UINT64_C(1) << 40, .expires = UINT64_MAX};
    if (peer->secure)
        shake_hands(peer);
}

iou_lane_options peer_options(struct peer *peer, uint32_t flags, uint64_t size, size_t rest) {
    peer->began = now_ns();
    peer->sent = min_u64(min_u64(rest, peer->stream.length), LANE_STAGING);
    return (iou_lane_options){
        .fd = peer->lanes_fd,
        .tls = peer->ends[0],
        .flags = flags,
        .size = size,
        .timeout_ms = TIMEOUT_MS,
        .rest = peer->stream.data,
        .rest_length = peer->sent,
        .control = &peer->control,
        .lease = &peer->lease,
    };
}

/* Whether a thread of this process is one of a lane. */
static bool is_lanes_thread(const char *id) {
    char path[300], name[16] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%s/comm", id);
    FILE *file = fopen(path, "r");
    bool found = file && fgets(name, sizeof(name), file) && strstr(name, "-lane");
    if (file)
        fclose(file);
    return found;
}

/* OpenSSL has memory of each thread, which is freed when the thread ends: that is after its lane. */
static void await_threads(void) {
    bool found;
    do {
        DIR *threads = opendir("/proc/self/task");
        const struct dirent *entry;
        CHECK(threads);
        for (found = false; !found && (entry = readdir(threads));)
            found = is_lanes_thread(entry->d_name);
        closedir(threads);
        if (found)
            sched_yield();
    } while (found);
}

void peer_close(struct peer *peer) {
    iou_completion completion;
    CHECK(iou_lane_free(peer->lane) == 0);
    if (peer->secure)
        await_threads();
    CHECK(iou_execute(peer->handle, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL, &completion) == 0);
    for (unsigned i = 0; i < 2; i++)
        if (peer->ends[i])
            iou_tls_free(peer->ends[i]);
    close(peer->fd);
    close(peer->owners_fd);
    bytes_free(&peer->stream);
    bytes_free(&peer->received);
    calls_left = -1;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

/* As recv(2) and send(2) without waiting. */
static ssize_t receive(iou_tls *tls, int fd, char *data, size_t size) {
    int64_t count = tls ? iou_tls_read(tls, data, size) : recv(fd, data, size, MSG_DONTWAIT);
    return count < 0 ? -1 : (ssize_t)count;
}

static ssize_t transmit(struct peer *peer, const char *data, size_t size) {
    int64_t count = peer->secure ? iou_tls_write(peer->ends[1], data, size, false)
                                 : send(peer->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return count < 0 ? -1 : (ssize_t)count;
}

static bool receive_some(struct peer *peer) {
    static char piece[256 * 1024];
    ssize_t count = receive(peer->ends[1], peer->fd, piece, sizeof(piece));
    if (count > 0)
        bytes_add(&peer->received, piece, (size_t)count);
    return count > 0;
}

/* Whether the lane has taken what it was sent. */
static bool is_taken(const struct peer *peer) {
    int waiting = 0;
    CHECK(ioctl(peer->fd, SIOCOUTQ, &waiting) == 0);
    return waiting == 0;
}

/* Each is waited for, which takes its time: the last one is all that is left. */
static size_t choose_piece(struct peer *peer, size_t left) {
    static const uint64_t MOST[] = {3, 40, 40, 300, 5000, 100000, 100000, 3000000};
    if (peer->random == 0 || peer->pieces++ == MOST_PIECES)
        return left;
    return min_u64(left, 1 + below(&peer->random, MOST[below(&peer->random, 8)]));
}

/* What TLS has not taken of a piece comes again before anything else does. */
static bool send_some(struct peer *peer, size_t most) {
    if (peer->piece == 0)
        peer->piece = choose_piece(peer, most - peer->sent);
    ssize_t count = transmit(peer, peer->stream.data + peer->sent, peer->piece);
    if (count > 0) {
        peer->sent += (size_t)count;
        peer->piece -= (size_t)count;
    }
    return count > 0;
}

/* The lane takes the end of a client with TLS for its death: it comes after all answers. */
static void end_sending(struct peer *peer, bool complete) {
    if (peer->said_all || peer->sent < peer->stream.length || (peer->secure && !complete))
        return;
    if (peer->secure)
        iou_tls_end(peer->ends[1]);
    shutdown(peer->fd, SHUT_WR);
    peer->said_all = true;
}

/* ---- the time of a lane ----------------------------------------------------------------------------------------- */

static bool has_ended(struct peer *peer) {
    iou_lane_stats stats;
    iou_lane_report reports[IOU_LANE_REPORTS];
    iou_range ranges[100];
    CHECK(iou_lane_reports(peer->lane, reports, IOU_LANE_REPORTS) >= 0);
    iou_lane_get_stats(peer->lane, &stats);
    while (iou_lane_counted(peer->lane, ranges, 100) == 100)
        ;
    return stats.ended;
}

static void await(struct peer *peer, int ms) {
    struct pollfd polled[2] = {{.fd = peer->fd, .events = POLLIN}, {.fd = iou_lane_fd(peer->lane), .events = POLLIN}};
    poll(polled, 2, ms);
}

/* Wait for the lane to take a piece, but not for ever. */
static bool may_send(const struct peer *peer, uint64_t *since) {
    if (is_taken(peer) || now_ns() - *since > PATIENCE_NS) {
        *since = now_ns();
        return true;
    }
    sched_yield();
    return false;
}

void peer_serve(struct peer *peer) {
    uint64_t since = peer->began;
    bool ended, complete = false;
    do {
        ended = has_ended(peer); /* what it sent before is there now */
        while (receive_some(peer))
            ;
        size_t most = peer->look(peer, &complete);
        bool sends = most > peer->sent;
        if (sends && may_send(peer, &since))
            sends = send_some(peer, most);
        end_sending(peer, complete);
        if (!ended && !sends)
            await(peer, 20);
        CHECK(now_ns() - peer->began < TIMEOUT_MS * UINT64_C(1000000));
    } while (!ended);
}

void peer_end_http(struct peer *peer, iou_http_end *end, struct bytes *unread) {
    static char rest[IOU_LANE_MAX_STAGED];
    char piece[4096];
    ssize_t count;
    int length = iou_http_ended(peer->lane, end, rest);
    CHECK(length >= 0);
    bytes_add(unread, rest, (size_t)length);
    while ((count = receive(peer->ends[0], peer->owners_fd, piece, sizeof(piece))) > 0)
        bytes_add(unread, piece, (size_t)count);
    bytes_add(unread, peer->stream.data + peer->sent, peer->stream.length - peer->sent);
}

bool peer_was_slow(const struct peer *peer) {
    return now_ns() - peer->began > IDLE_NS;
}
