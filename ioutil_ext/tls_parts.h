/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The parts of TLS: policy, certificates and words for what fails (tls_context.c), the socket as OpenSSL sees it
 * (tls_bio.c), connections (tls.c). Only these know OpenSSL.
 */

#ifndef IOUTIL_TLS_PARTS_H
#define IOUTIL_TLS_PARTS_H

#include <openssl/ssl.h>

#include "tls.h"

/* ---- contexts --------------------------------------------------------------------------------------------------- */

struct iou_tls_context {
    SSL_CTX *ssl;
    atomic_uint references;
};

/* Called by OpenSSL for each record and message, of either direction (SSL_CTX_set_msg_callback(3)). */
void tls_count_record(int sent, int version, int type, const void *data, size_t size, SSL *ssl, void *connection);

/* Tell why something failed, and forget the errors of this thread that OpenSSL has kept. */
void tls_set_reason(char *reason, const char *text);

/* Tell the first of them. */
void tls_take_reason(char *reason, const char *otherwise);

/* ---- the socket ------------------------------------------------------------------------------------------------- */

struct tls_socket {
    int fd;
    int error;    /* errno */
    bool drained; /* it had less than was asked for: not worth asking again before it is readable */
    bool ended;   /* it has nothing more */
    bool more;    /* what is sent is followed by more at once */
};

/* What OpenSSL receives from and sends to; NULL: no memory. */
BIO *tls_bio_new(struct tls_socket *socket);

#endif
