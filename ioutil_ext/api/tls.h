/* SPDX-License-Identifier: Apache-2.0 */

/*
 * TLS on non-blocking sockets, with OpenSSL. Bytes go from the socket to the caller's memory with one copy, without the
 * GIL. cffi's cdef() reads this after api/ioutil.h, whose conventions apply. Each connection has a lock: any thread may
 * call its functions, and they run one at a time.
 */

#ifndef IOUTIL_API_TLS_H
#define IOUTIL_API_TLS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct iou_tls_context iou_tls_context; /* certificate, key and policy; connections hold references */
typedef struct iou_tls iou_tls;                 /* one connection */

enum {
    IOU_TLS_WANTS_INPUT = -4096, /* call again when the socket is readable; each errno is smaller than 4096 */
    IOU_TLS_WANTS_ROOM = -4097,  /* call again when the socket is writable */
    IOU_TLS_REASON = 256,        /* bytes of the text of a failure, with its NUL */
    IOU_TLS_KEY_HASH = 32        /* bytes of the hash of a public key: SHA-256 */
};

/* The policy of a context. Python sets it from its SSLContext. */
typedef struct {
    const char *chain_file;  /* a PEM file with our certificate and the intermediate ones, or NULL */
    const char *key_file;    /* its key, without a passphrase */
    const char *ca_file;     /* a file of trusted authorities, or NULL */
    const char *ca_dir;      /* a directory of trusted authorities, named by hashes (c_rehash(1)), or NULL */
    const char *ciphers;     /* of TLS 1.2, as in OpenSSL's ciphers(1) */
    uint64_t options;        /* SSL_OP_... */
    uint64_t verify_flags;   /* X509_V_FLAG_... */
    int32_t minimum_version; /* 0x0303 for TLS 1.2, or 0 for any */
    int32_t security_level;  /* SSL_CTX_set_security_level(3) */
    uint32_t server;         /* we are the server */
    uint32_t asks_peer;      /* request the peer's certificate; a client must */
    uint32_t needs_peer;     /* end the connection if the peer has no certificate */
} iou_tls_policy;

/* Return the name and version of the OpenSSL that the extension uses, which may not be the one of Python's ssl. */
const char *iou_tls_library(void);

/* Make a context. `reason` is memory of IOU_TLS_REASON bytes, for the text of a failure. Returns 0, -EINVAL or -ENOMEM.
 */
int iou_tls_context_new(const iou_tls_policy *policy, iou_tls_context **result, char *reason);
void iou_tls_context_free(iou_tls_context *context);

/* Return when our certificate expires, in seconds since 1970, or 0 if there is none. */
int64_t iou_tls_context_expires(const iou_tls_context *context);

/*
 * Make a connection on a socket. The caller owns `fd`, and keeps it open until the connection is freed. `host` is the
 * name that the server's certificate must have, or NULL if the peer is a client. Returns 0, -EINVAL for an empty name,
 * or -ENOMEM.
 */
int iou_tls_new(iou_tls_context *context, int fd, const char *host, iou_tls **result);
void iou_tls_free(iou_tls *tls);

/*
 * Continue the handshake. Returns 0 when it is complete, or IOU_TLS_WANTS_.... If the handshake has failed, returns
 * -EKEYREJECTED if the peer's certificate is not trusted, -EPROTO, -ECONNRESET, or another errno of the socket.
 */
int iou_tls_handshake(iou_tls *tls);

/*
 * Get the hash of the public key (SubjectPublicKeyInfo in DER: RFC 7469 2.4) of the server's certificate, with
 * IOU_TLS_KEY_HASH bytes. This works also after -EKEYREJECTED, but only a complete handshake proves that the server has
 * the key. Returns 0, or -ENOENT if the server has sent no certificate, or if we are the server.
 */
int iou_tls_peer_key(iou_tls *tls, uint8_t *hash);

/*
 * Receive at most `size` bytes. Returns how many: all that have arrived, unless they are in very many records. Returns
 * 0 if the peer has sent close_notify or closed the socket, otherwise IOU_TLS_WANTS_... or an error of
 * iou_tls_handshake(). If the peer sends many records without data, this and the handshake fail with -EPROTO.
 */
int64_t iou_tls_read(iou_tls *tls, void *memory, uint64_t size);

/* Return whether iou_tls_read() has a result even if the socket is not readable: bytes, whole records, the end or an
   error. */
bool iou_tls_pending(iou_tls *tls);

/*
 * Send at least one of `size` bytes, which is not 0. Returns how many were sent, IOU_TLS_WANTS_..., or an error of
 * iou_tls_handshake(). Pass `more` if further bytes follow at once. The next call must start with the bytes that were
 * not sent, and must not be shorter, because a part of their record may have been sent.
 */
int64_t iou_tls_write(iou_tls *tls, const void *memory, uint64_t size, bool more);

/* Send close_notify (RFC 8446 6.1), if the socket has room. */
void iou_tls_end(iou_tls *tls);

/* Return why the connection has failed, for the log. Valid until the connection is freed. */
const char *iou_tls_reason(const iou_tls *tls);

#endif
