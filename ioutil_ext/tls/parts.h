/* SPDX-License-Identifier: Apache-2.0 */

/* The parts of TLS: policy, certificates and texts of failures (context.c), the socket as OpenSSL sees it (bio.c),
   connections (tls.c). Only these use OpenSSL. */

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

/* Set the reason of a failure to this text, and clear OpenSSL's queue of errors of this thread. */
void tls_set_reason(char *reason, const char *text);

/* Set the reason to the first error in that queue, or to `otherwise` if it is empty. */
void tls_take_reason(char *reason, const char *otherwise);

/* What a client keeps of the server's certificate. It is the application data of its SSL. */
struct tls_peer {
    bool known;
    uint8_t key[IOU_TLS_KEY_HASH];
};

/* ---- the socket ------------------------------------------------------------------------------------------------- */

struct tls_socket {
    int fd;
    int error;    /* errno */
    bool drained; /* it had fewer bytes than requested, so do not receive again before it is readable */
    bool ended;   /* no more bytes will arrive */
    bool partial; /* OpenSSL has at most a part of a record, as no bytes have arrived since it wanted more */
    bool more;    /* more bytes will be sent at once */
};

/* Make the BIO from which OpenSSL receives and to which it sends. Returns NULL without memory. */
BIO *tls_bio_new(struct tls_socket *socket);

#endif
