/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The parts of TLS: policy, certificates and words for what fails (context.c), the socket as OpenSSL sees it
 * (bio.c), connections (tls.c). Only these know OpenSSL.
 */

#ifndef IOUTIL_TLS_PARTS_H
#define IOUTIL_TLS_PARTS_H

#include <stdatomic.h>
#include <stdbool.h>

#include <openssl/ssl.h>

#include "tls/tls.h"

/* ---- contexts --------------------------------------------------------------------------------------------------- */

struct iou_tls_context {
    SSL_CTX *ssl;
    atomic_uint references;
};

/* Tell why something failed, and forget the errors of this thread that OpenSSL has kept. */
void tls_set_reason(char *reason, const char *text);

/* Tell the first of them. */
void tls_take_reason(char *reason, const char *otherwise);

/* What a client keeps of the server's certificate: the application data of its SSL. */
struct tls_peer {
    bool known;
    uint8_t key[IOU_TLS_KEY_HASH];
};

/* ---- the socket ------------------------------------------------------------------------------------------------- */

struct tls_socket {
    int fd;
    int error;    /* errno */
    bool drained; /* it had less than was asked for: not worth asking again before it is readable */
    bool ended;   /* it has nothing more */
    bool partial; /* OpenSSL has at most a part of a record of it: nothing has come since it wanted more */
    bool more;    /* what is sent is followed by more at once */
};

/* What OpenSSL receives from and sends to; NULL: no memory. */
BIO *tls_bio_new(struct tls_socket *socket);

#endif
