/* SPDX-License-Identifier: Apache-2.0 */

/* A non-blocking socket as OpenSSL sees it: a BIO that notes the state of the socket for its connection. */

#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>

#include "tls/parts.h"

static int bio_read(BIO *bio, char *memory, size_t size, size_t *count) {
    struct tls_socket *socket = BIO_get_data(bio);
    ssize_t got = -1;
    BIO_clear_retry_flags(bio);
    errno = EAGAIN;
    if (!socket->drained)
        while ((got = recv(socket->fd, memory, size, 0)) == -1 && errno == EINTR)
            ;
    if (got > 0) {
        *count = (size_t)got;
        socket->drained = (size_t)got < size;
        socket->partial = false;
        return 1;
    }
    if (got == -1 && errno == EAGAIN)
        BIO_set_retry_read(bio);
    else if (got == -1)
        socket->error = errno;
    else
        socket->ended = true;
    return 0;
}

static int bio_write(BIO *bio, const char *memory, size_t size, size_t *count) {
    struct tls_socket *socket = BIO_get_data(bio);
    int flags = MSG_NOSIGNAL | (socket->more ? MSG_MORE : 0);
    ssize_t sent;
    BIO_clear_retry_flags(bio);
    while ((sent = send(socket->fd, memory, size, flags)) == -1 && errno == EINTR)
        ;
    if (sent >= 0) {
        *count = (size_t)sent;
        return 1;
    }
    if (errno == EAGAIN)
        BIO_set_retry_write(bio);
    else
        socket->error = errno;
    return 0;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    const struct tls_socket *socket = BIO_get_data(bio);
    (void)number, (void)pointer;
    if (command == BIO_CTRL_EOF)
        return socket->ended;
    return command == BIO_CTRL_FLUSH; /* nothing is held back */
}

static BIO_METHOD *method;

static void make_method(void) {
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    if (method) {
        BIO_meth_set_read_ex(method, bio_read);
        BIO_meth_set_write_ex(method, bio_write);
        BIO_meth_set_ctrl(method, bio_control);
    }
}

BIO *tls_bio_new(struct tls_socket *socket) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_method);
    BIO *bio = method ? BIO_new(method) : NULL;
    if (bio) {
        BIO_set_data(bio, socket);
        BIO_set_init(bio, 1);
    }
    return bio;
}
