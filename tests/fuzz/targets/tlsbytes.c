/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Our TLS, of a server or a client, and a real peer; between them somebody who cuts, delays, changes and makes up what
 * the peer sends. What is read is a beginning of what the peer wrote, whatever happens; all of it, if nothing was
 * changed.
 */

#include "fuzz.h"

#include <openssl/err.h>
#include <sys/socket.h>

enum { TLS_1_2 = 1, NO_RENEGOTIATION = 2, CLIENT = 4 };
enum { DELIVER, ANSWER, SERVE, WRITE, CHANGE_KEYS, TAMPER, MAKE_UP, END, ACTIONS };

#define FEW 30u

struct scene {
    struct input input;
    iou_tls *ours;
    SSL *theirs;
    int fds[2];       /* of ours, of theirs */
    struct bytes way; /* what the peer has sent and we have not got */
    bool changed;     /* something that a peer would not do was done */
    bool ended;       /* nothing more comes to us */
    unsigned key_changes;
    bool shaken;          /* hands, by us */
    uint64_t wrote, read; /* bytes of data */
    int64_t failure;
};

static iou_tls_context *servers[2], *client;
static SSL_CTX *their_servers, *their_clients;

static void make_ours(const char *path) {
    char reason[IOU_TLS_REASON];
    for (unsigned i = 0; i < 2; i++) {
        iou_tls_policy server = {.chain_file = path,
                                 .key_file = path,
                                 .options = SSL_OP_IGNORE_UNEXPECTED_EOF | (i ? SSL_OP_NO_RENEGOTIATION : 0),
                                 .minimum_version = TLS1_2_VERSION,
                                 .server = 1};
        CHECK(iou_tls_context_new(&server, &servers[i], reason) == 0);
    }
    iou_tls_policy policy = {.ca_file = path, .asks_peer = 1, .needs_peer = 1};
    CHECK(iou_tls_context_new(&policy, &client, reason) == 0);
}

static void make_theirs(const char *path) {
    CHECK((their_clients = SSL_CTX_new(TLS_client_method())) && (their_servers = SSL_CTX_new(TLS_server_method())));
    CHECK(SSL_CTX_use_certificate_file(their_servers, path, SSL_FILETYPE_PEM) == 1 &&
          SSL_CTX_use_PrivateKey_file(their_servers, path, SSL_FILETYPE_PEM) == 1);
    SSL_CTX_set_mode(their_clients, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_mode(their_servers, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

static void begin(void) {
    char path[] = "/tmp/imageio-fuzz-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd != -1 && close(fd) == 0);
    make_certificate(path);
    make_ours(path);
    make_theirs(path);
    CHECK(unlink(path) == 0);
}

static char byte_at(uint64_t position) {
    return (char)(position % 251);
}

/* ---- the peer --------------------------------------------------------------------------------------------------- */

/* Take what the peer wants to send. */
static void take_sent(struct scene *scene) {
    char piece[4096];
    int count;
    while ((count = BIO_read(SSL_get_wbio(scene->theirs), piece, sizeof(piece))) > 0)
        bytes_add(&scene->way, piece, (size_t)count);
    ERR_clear_error();
}

/* The peer gets what we have sent, and goes on. */
static void answer(struct scene *scene) {
    char piece[4096];
    ssize_t count;
    while ((count = recv(scene->fds[1], piece, sizeof(piece), 0)) > 0)
        CHECK(BIO_write(SSL_get_rbio(scene->theirs), piece, (int)count) == count);
    if (SSL_do_handshake(scene->theirs) == 1)
        while (SSL_read(scene->theirs, piece, sizeof(piece)) > 0)
            ;
    take_sent(scene);
}

static void write_data(struct scene *scene, size_t length) {
    char piece[256 * 64];
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        piece[i] = byte_at(scene->wrote + i);
    if (length && SSL_is_init_finished(scene->theirs) && SSL_write_ex(scene->theirs, piece, length, &count) == 1)
        scene->wrote += count;
    take_sent(scene);
}

/* Who changes keys all the time is given up. */
static void change_keys(struct scene *scene, unsigned how) {
    if (!SSL_is_init_finished(scene->theirs))
        return;
    scene->changed = scene->changed || scene->key_changes++ == FEW;
    if (SSL_version(scene->theirs) == TLS1_3_VERSION) {
        SSL_key_update(scene->theirs, how & 1 ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED);
    } else {
        SSL_renegotiate(scene->theirs);
        scene->changed = true; /* it may be refused, and data waits meanwhile */
    }
    SSL_do_handshake(scene->theirs);
    take_sent(scene);
}

/* ---- the way ---------------------------------------------------------------------------------------------------- */

static void deliver(struct scene *scene, size_t most) {
    size_t length = min_u64(most, scene->way.length);
    if (scene->ended || length == 0)
        return;
    ssize_t count = send(scene->fds[1], scene->way.data, length, MSG_NOSIGNAL);
    if (count <= 0)
        return;
    scene->way.length -= (size_t)count;
    memmove(scene->way.data, scene->way.data + count, scene->way.length);
}

static void make_up(struct scene *scene, size_t length) {
    length = min_u64(length, (size_t)(scene->input.end - scene->input.at));
    if (length && !scene->ended && send(scene->fds[1], scene->input.at, length, MSG_NOSIGNAL) > 0)
        scene->changed = true;
    scene->input.at += length;
}

static void end(struct scene *scene, unsigned how) {
    if (how & 1) {
        SSL_shutdown(scene->theirs);
        take_sent(scene);
    }
    if (how & 2) {
        shutdown(scene->fds[1], how & 4 ? SHUT_RDWR : SHUT_WR);
        scene->ended = true;
    }
    if (how & 8)
        iou_tls_end(scene->ours);
    scene->changed = true;
}

/* ---- we --------------------------------------------------------------------------------------------------------- */

static bool is_failure(int64_t result) {
    return result < 0 && result != IOU_TLS_WANTS_INPUT && result != IOU_TLS_WANTS_ROOM;
}

/* What has failed stays so, and tells why. */
static void note(struct scene *scene, int64_t result) {
    if (scene->failure)
        CHECK(result == scene->failure);
    if (!is_failure(result))
        return;
    CHECK(result > -4096 && memchr(iou_tls_reason(scene->ours), 0, IOU_TLS_REASON));
    CHECK(iou_tls_pending(scene->ours));
    scene->failure = result;
}

static void read_data(struct scene *scene, size_t size) {
    char *piece = malloc(size);
    CHECK(piece || size == 0);
    int64_t count = iou_tls_read(scene->ours, piece, size);
    CHECK(count <= (int64_t)size);
    for (int64_t i = 0; i < count; i++)
        CHECK(piece[i] == byte_at(scene->read++));
    CHECK(scene->read <= scene->wrote);
    free(piece);
    note(scene, count);
}

static void serve(struct scene *scene, unsigned size) {
    if (!scene->shaken) {
        int result = iou_tls_handshake(scene->ours);
        scene->shaken = result == 0;
        note(scene, result);
    } else if (size % 8 == 7) {
        static const char DATA[256 * 16];
        note(scene, iou_tls_write(scene->ours, DATA, size * 16 + 1, size & 8));
    } else {
        read_data(scene, 1 + size * size);
    }
}

/* Nothing was changed: hands are shaken, and all that was written arrives. */
static void finish(struct scene *scene) {
    for (unsigned quiet = 0; quiet < 8 && !scene->failure; quiet++) {
        size_t way = scene->way.length;
        uint64_t read = scene->read;
        deliver(scene, SIZE_MAX);
        serve(scene, 128);
        answer(scene);
        if (scene->way.length != way || scene->read != read)
            quiet = 0;
    }
    CHECK(!scene->failure && scene->shaken && scene->read == scene->wrote && scene->way.length == 0);
}

/* ---- inputs ----------------------------------------------------------------------------------------------------- */

static void act(struct scene *scene) {
    unsigned action = take_byte(&scene->input), how = take_byte(&scene->input);
    switch (action % ACTIONS) {
    case DELIVER:
        deliver(scene, how == 255 ? SIZE_MAX : how * (action & 16 ? 64 : 1));
        break;
    case ANSWER:
        answer(scene);
        break;
    case SERVE:
        serve(scene, how);
        break;
    case WRITE:
        write_data(scene, how * 64);
        break;
    case CHANGE_KEYS:
        change_keys(scene, how);
        break;
    case TAMPER:
        if (how < scene->way.length) {
            scene->way.data[how] ^= (char)take_byte(&scene->input);
            scene->changed = true;
        }
        break;
    case MAKE_UP:
        make_up(scene, how * (action & 16 ? 64 : 1));
        break;
    default:
        end(scene, how);
    }
}

static void meet(struct scene *scene, unsigned options) {
    bool is_client = options & CLIENT;
    iou_tls_context *context = is_client ? client : servers[options & NO_RENEGOTIATION ? 1 : 0];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, scene->fds) == 0);
    CHECK(iou_tls_new(context, scene->fds[0], is_client ? "x" : NULL, &scene->ours) == 0);
    CHECK((scene->theirs = SSL_new(is_client ? their_servers : their_clients)));
    SSL_set_bio(scene->theirs, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    (is_client ? SSL_set_accept_state : SSL_set_connect_state)(scene->theirs);
    SSL_set_max_proto_version(scene->theirs, options & TLS_1_2 ? TLS1_2_VERSION : TLS1_3_VERSION);
}

/* Options, and what is done, each thing with a number. */
static void run(const char *data, size_t size) {
    struct scene scene = {.input = {data, data + size}};
    meet(&scene, take_byte(&scene.input));
    while (scene.input.at < scene.input.end)
        act(&scene);
    if (!scene.changed)
        finish(&scene);
    iou_tls_end(scene.ours);
    iou_tls_free(scene.ours);
    SSL_free(scene.theirs);
    ERR_clear_error();
    bytes_free(&scene.way);
    close(scene.fds[0]);
    close(scene.fds[1]);
}

const struct target tls_target = {.name = "tls", .begin = begin, .run = run};
