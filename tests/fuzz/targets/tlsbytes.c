/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A server's TLS between a real client and somebody who cuts, delays, changes and makes up what the client sends. What
 * the server reads is a beginning of what the client wrote, whatever happens; all of it, if nothing was changed.
 */

#include "fuzz.h"

#include <openssl/err.h>
#include <sys/socket.h>

enum { TLS_1_2 = 1, NO_RENEGOTIATION = 2 };
enum { DELIVER, ANSWER, SERVE, WRITE, CHANGE_KEYS, TAMPER, MAKE_UP, END, ACTIONS };

#define FEW 30u

struct scene {
    struct input input;
    iou_tls *server;
    SSL *client;
    int fds[2];       /* the server's, ours */
    struct bytes way; /* what the client has sent and the server not got */
    bool changed;     /* something that a client would not do was done */
    bool ended;       /* nothing more goes to the server */
    unsigned key_changes;
    bool shaken;          /* hands, by the server */
    uint64_t wrote, read; /* bytes of data */
    int64_t failure;
};

static iou_tls_context *contexts[2];
static SSL_CTX *client_context;

static void begin(void) {
    char path[] = "/tmp/imageio-fuzz-XXXXXX", reason[IOU_TLS_REASON];
    int fd = mkstemp(path);
    CHECK(fd != -1 && close(fd) == 0);
    make_certificate(path);
    for (unsigned i = 0; i < 2; i++) {
        iou_tls_policy server = {.chain_file = path,
                                 .key_file = path,
                                 .options = SSL_OP_IGNORE_UNEXPECTED_EOF | (i ? SSL_OP_NO_RENEGOTIATION : 0),
                                 .minimum_version = TLS1_2_VERSION,
                                 .server = 1};
        CHECK(iou_tls_context_new(&server, &contexts[i], reason) == 0);
    }
    CHECK(unlink(path) == 0);
    CHECK((client_context = SSL_CTX_new(TLS_client_method())));
    SSL_CTX_set_mode(client_context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

static char byte_at(uint64_t position) {
    return (char)(position % 251);
}

/* ---- the client ------------------------------------------------------------------------------------------------- */

/* Take what the client wants to send. */
static void take_sent(struct scene *scene) {
    char piece[4096];
    int count;
    while ((count = BIO_read(SSL_get_wbio(scene->client), piece, sizeof(piece))) > 0)
        bytes_add(&scene->way, piece, (size_t)count);
    ERR_clear_error();
}

/* The client gets what the server has sent, and goes on. */
static void answer(struct scene *scene) {
    char piece[4096];
    ssize_t count;
    while ((count = recv(scene->fds[1], piece, sizeof(piece), 0)) > 0)
        CHECK(BIO_write(SSL_get_rbio(scene->client), piece, (int)count) == count);
    if (SSL_do_handshake(scene->client) == 1)
        while (SSL_read(scene->client, piece, sizeof(piece)) > 0)
            ;
    take_sent(scene);
}

static void write_data(struct scene *scene, size_t length) {
    char piece[256 * 64];
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        piece[i] = byte_at(scene->wrote + i);
    if (length && SSL_is_init_finished(scene->client) && SSL_write_ex(scene->client, piece, length, &count) == 1)
        scene->wrote += count;
    take_sent(scene);
}

/* Who changes keys all the time is given up. */
static void change_keys(struct scene *scene, unsigned how) {
    if (!SSL_is_init_finished(scene->client))
        return;
    scene->changed = scene->changed || scene->key_changes++ == FEW;
    if (SSL_version(scene->client) == TLS1_3_VERSION) {
        SSL_key_update(scene->client, how & 1 ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED);
    } else {
        SSL_renegotiate(scene->client);
        scene->changed = true; /* it may be refused, and data waits meanwhile */
    }
    SSL_do_handshake(scene->client);
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
        SSL_shutdown(scene->client);
        take_sent(scene);
    }
    if (how & 2) {
        shutdown(scene->fds[1], how & 4 ? SHUT_RDWR : SHUT_WR);
        scene->ended = true;
    }
    if (how & 8)
        iou_tls_end(scene->server);
    scene->changed = true;
}

/* ---- the server ------------------------------------------------------------------------------------------------- */

static bool is_failure(int64_t result) {
    return result < 0 && result != IOU_TLS_WANTS_INPUT && result != IOU_TLS_WANTS_ROOM;
}

/* What has failed stays so, and tells why. */
static void note(struct scene *scene, int64_t result) {
    if (scene->failure)
        CHECK(result == scene->failure);
    if (!is_failure(result))
        return;
    CHECK(result > -4096 && memchr(iou_tls_reason(scene->server), 0, IOU_TLS_REASON));
    CHECK(iou_tls_pending(scene->server));
    scene->failure = result;
}

static void read_data(struct scene *scene, size_t size) {
    char *piece = malloc(size);
    CHECK(piece || size == 0);
    int64_t count = iou_tls_read(scene->server, piece, size);
    CHECK(count <= (int64_t)size);
    for (int64_t i = 0; i < count; i++)
        CHECK(piece[i] == byte_at(scene->read++));
    CHECK(scene->read <= scene->wrote);
    free(piece);
    note(scene, count);
}

static void serve(struct scene *scene, unsigned size) {
    if (!scene->shaken) {
        int result = iou_tls_handshake(scene->server);
        scene->shaken = result == 0;
        note(scene, result);
    } else if (size % 8 == 7) {
        static const char DATA[256 * 16];
        note(scene, iou_tls_write(scene->server, DATA, size * 16 + 1, size & 8));
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

/* Options, and what is done, each thing with a number. */
static void run(const char *data, size_t size) {
    struct scene scene = {.input = {data, data + size}};
    unsigned options = take_byte(&scene.input);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, scene.fds) == 0);
    CHECK(iou_tls_new(contexts[options & NO_RENEGOTIATION ? 1 : 0], scene.fds[0], NULL, &scene.server) == 0);
    CHECK((scene.client = SSL_new(client_context)));
    SSL_set_bio(scene.client, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(scene.client);
    SSL_set_max_proto_version(scene.client, options & TLS_1_2 ? TLS1_2_VERSION : TLS1_3_VERSION);
    while (scene.input.at < scene.input.end)
        act(&scene);
    if (!scene.changed)
        finish(&scene);
    iou_tls_end(scene.server);
    iou_tls_free(scene.server);
    SSL_free(scene.client);
    ERR_clear_error();
    bytes_free(&scene.way);
    close(scene.fds[0]);
    close(scene.fds[1]);
}

const struct target tls_target = {.name = "tls", .begin = begin, .run = run};
