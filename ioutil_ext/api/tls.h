/* SPDX-License-Identifier: Apache-2.0 */

/*
 * TLS on non-blocking sockets, by OpenSSL: bytes go from a socket to where they belong with one copy, without the GIL.
 * Read by cffi's cdef() after api/ioutil.h; the same conventions. What a connection does may be done in any thread, one
 * at a time: each has a lock.
 */

#ifndef IOUTIL_API_TLS_H
#define IOUTIL_API_TLS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct iou_tls_context iou_tls_context; /* certificate, key and policy; connections hold references */
typedef struct iou_tls iou_tls;                 /* one connection */

enum {
    IOU_TLS_WANTS_INPUT = -4096, /* again when the socket is readable; no errno is so large */
    IOU_TLS_WANTS_ROOM = -4097,  /* again when it is writable */
    IOU_TLS_REASON = 256         /* bytes of the text why something failed, with its NUL */
};

/* Policy is Python's: what its SSLContext has. */
typedef struct {
    const char *chain_file;  /* our certificate and those between it and the authority, PEM; NULL: none */
    const char *key_file;    /* without a passphrase */
    const char *ca_file;     /* whose certificates are believed; NULL: nobody's, or the system's if we verify */
    const char *ciphers;     /* of TLS 1.2, as OpenSSL's ciphers(1) */
    uint64_t options;        /* SSL_OP_... */
    uint64_t verify_flags;   /* X509_V_FLAG_... */
    int32_t minimum_version; /* 0x0303: TLS 1.2; 0: any */
    int32_t security_level;  /* SSL_CTX_set_security_level(3) */
    uint32_t server;         /* we are */
    uint32_t asks_peer;      /* for its certificate. Clients must */
    uint32_t needs_peer;     /* and end without one */
} iou_tls_policy;

/* reason: IOU_TLS_REASON bytes. -EINVAL, -ENOMEM. */
int iou_tls_context_new(const iou_tls_policy *policy, iou_tls_context **result, char *reason);
void iou_tls_context_free(iou_tls_context *context);

/*
 * fd stays the caller's, open until the connection is freed. host: of a server, checked; NULL: it is a client. -EINVAL:
 * an empty one; -ENOMEM.
 */
int iou_tls_new(iou_tls_context *context, int fd, const char *host, iou_tls **result);
void iou_tls_free(iou_tls *tls);

/*
 * 0: done; IOU_TLS_WANTS_...; -EKEYREJECTED: the peer is not to be believed; -EPROTO, -ECONNRESET or another errno of
 * the socket: it failed.
 */
int iou_tls_handshake(iou_tls *tls);

/*
 * Receive at most size bytes, and no less than are there, if they come in a reasonable number of records. 0: the peer
 * has said farewell, or ended. IOU_TLS_WANTS_..., errors as iou_tls_handshake(). A peer that sends many records without
 * data is given up: -EPROTO, here and in its handshake.
 */
int64_t iou_tls_read(iou_tls *tls, void *memory, uint64_t size);

/* Whether there is something to read of which the socket does not tell: bytes, records, the end or an error. */
bool iou_tls_pending(iou_tls *tls);

/*
 * Send at least a byte of size, which is not 0; more: others follow at once. What is not taken comes next, and no
 * shorter than it was: a record of it may be half sent. IOU_TLS_WANTS_..., errors as above.
 */
int64_t iou_tls_write(iou_tls *tls, const void *memory, uint64_t size, bool more);

/* Say farewell, as far as there is room. */
void iou_tls_end(iou_tls *tls);

/* Why the connection failed, for the log. Valid until it is freed. */
const char *iou_tls_reason(const iou_tls *tls);

#endif
