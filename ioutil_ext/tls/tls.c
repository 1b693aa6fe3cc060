/* SPDX-License-Identifier: Apache-2.0 */

/* TLS on non-blocking sockets: see api/tls.h. Connections, from the handshake to close_notify. Nothing here waits. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "base/numbers.h"
#include "tls/parts.h"

/* Most bytes that are encrypted at once: the largest record. */
#define RECORD_SIZE (16 * KIB)

/*
 * Most records of one call to receive, because other connections wait for this thread. Enough for 256 KiB of a client
 * that sends records of the size of a packet.
 */
#define MOST_RECORDS 256u

/*
 * How many records without data a connection may have, as those of a handshake, and after how many bytes of data it may
 * have another one: a client may change keys with each request. This credit is limited, because OpenSSL handles all
 * records that have arrived in one call. A change of keys (RFC 8446 4.6.3) costs 16 us of processor time, the refusal
 * of a new handshake 7. A handshake with certificates on both sides, cut to records of 512 bytes, has 40 records.
 */
#define MOST_IDLE_RECORDS 64u
#define DATA_PER_IDLE_RECORD 256u
#define MOST_CREDIT (MOST_IDLE_RECORDS * DATA_PER_IDLE_RECORD)

struct iou_tls {
    iou_tls_context *context;
    SSL *ssl;
    pthread_mutex_t lock;
    struct tls_socket socket;
    uint32_t records; /* received by this call */
    uint64_t credit;  /* bytes of data that still allow records without data */
    bool flooded;
    bool emptied; /* the last call to receive has all that had arrived */
    struct tls_peer peer;
    int failure; /* -errno: nothing can be sent or received any more */
    char reason[IOU_TLS_REASON];
};

/* ---- records ---------------------------------------------------------------------------------------------------- */

/* In TLS 1.2 the header has the type of the record. In TLS 1.3 it always says data, and the type inside follows. */
static bool is_idle_record(int type, const unsigned char *data) {
    return (type == SSL3_RT_HEADER || type == SSL3_RT_INNER_CONTENT_TYPE) && *data != SSL3_RT_APPLICATION_DATA;
}

/* Called by OpenSSL for each record and message, of either direction (SSL_set_msg_callback(3)). */
static void count_record(int sent, int version, int type, const void *data, size_t size, SSL *ssl, void *connection) {
    struct iou_tls *tls = connection;
    (void)version;
    if (sent || size == 0)
        return;
    tls->records += type == SSL3_RT_HEADER;
    if (!is_idle_record(type, data))
        return;
    if (tls->credit >= DATA_PER_IDLE_RECORD) {
        tls->credit -= DATA_PER_IDLE_RECORD;
    } else {
        tls->flooded = true;
        SSL_set_shutdown(ssl, SSL_get_shutdown(ssl) | SSL_RECEIVED_SHUTDOWN); /* OpenSSL stops at this record */
    }
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

static bool set_up_tls(struct iou_tls *tls, const char *host) {
    tls->ssl = SSL_new(tls->context->ssl);
    BIO *bio = tls->ssl ? tls_bio_new(&tls->socket) : NULL;
    if (!bio)
        return false;
    SSL_set_bio(tls->ssl, bio, bio);
    SSL_set_msg_callback(tls->ssl, count_record);
    SSL_set_msg_callback_arg(tls->ssl, tls);
    SSL_set_app_data(tls->ssl, &tls->peer);
    if (!host) {
        SSL_set_accept_state(tls->ssl);
        return true;
    }
    SSL_set_connect_state(tls->ssl);
    X509_VERIFY_PARAM *checked = SSL_get0_param(tls->ssl);
    X509_VERIFY_PARAM_set_hostflags(checked, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS); /* im*.example.com: RFC 9525 6.3 */
    if (X509_VERIFY_PARAM_set1_ip_asc(checked, host))
        return true; /* SNI has no addresses (RFC 6066 3) */
    ERR_clear_error();
    return SSL_set1_host(tls->ssl, host) && SSL_set_tlsext_host_name(tls->ssl, host);
}

int iou_tls_new(iou_tls_context *context, int fd, const char *host, iou_tls **result) {
    if (host && !*host)
        return -EINVAL; /* any name would do: SSL_set1_host(3) */
    struct iou_tls *tls = calloc(1, sizeof(*tls));
    if (!tls)
        return -ENOMEM;
    tls->socket.fd = fd;
    tls->credit = MOST_CREDIT;
    tls->context = context;
    context->references++;
    pthread_mutex_init(&tls->lock, NULL);
    if (!set_up_tls(tls, host)) {
        ERR_clear_error();
        iou_tls_free(tls);
        return -ENOMEM;
    }
    *result = tls;
    return 0;
}

void iou_tls_free(iou_tls *tls) {
    SSL_free(tls->ssl);
    pthread_mutex_destroy(&tls->lock);
    iou_tls_context_free(tls->context);
    free(tls);
}

/* ---- the result of a call --------------------------------------------------------------------------------------- */

/* Whether it failed because the peer's certificate is not trusted. */
static bool is_rejected(int kind) {
    unsigned long code = ERR_peek_error();
    return kind == SSL_ERROR_SSL && ERR_GET_LIB(code) == ERR_LIB_SSL &&
           ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED;
}

/* Return the result for the caller after a call of OpenSSL that did not succeed. The lock is held. */
static int outcome(struct iou_tls *tls, int returned) {
    int kind = SSL_get_error(tls->ssl, returned);
    if (tls->flooded) {
        tls_set_reason(tls->reason, "too many records without data");
        return tls->failure = -EPROTO;
    }
    if (kind == SSL_ERROR_WANT_READ)
        return IOU_TLS_WANTS_INPUT;
    if (kind == SSL_ERROR_WANT_WRITE)
        return IOU_TLS_WANTS_ROOM;
    if (kind == SSL_ERROR_ZERO_RETURN)
        return 0;
    if (is_rejected(kind)) {
        tls_set_reason(tls->reason, X509_verify_cert_error_string(SSL_get_verify_result(tls->ssl)));
        return tls->failure = -EKEYREJECTED;
    }
    int error = tls->socket.error ? tls->socket.error : kind == SSL_ERROR_SSL ? EPROTO : ECONNRESET;
    tls_take_reason(tls->reason, strerrorname_np(error));
    return tls->failure = -error;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

static void tls_enter(struct iou_tls *tls) {
    pthread_mutex_lock(&tls->lock);
    ERR_clear_error(); /* of others, which SSL_get_error() would take for ours */
    tls->socket.drained = false;
    tls->records = 0;
}

static void tls_exit(struct iou_tls *tls) {
    pthread_mutex_unlock(&tls->lock);
}

int iou_tls_handshake(iou_tls *tls) {
    tls_enter(tls);
    int result = tls->failure;
    if (result == 0) {
        int done = SSL_do_handshake(tls->ssl);
        result = done == 1 ? 0 : outcome(tls, done);
        if (done != 1 && result == 0)
            result = tls->failure = -ECONNRESET; /* the peer has ended */
    }
    tls_exit(tls);
    return result;
}

int iou_tls_peer_key(iou_tls *tls, uint8_t *hash) {
    pthread_mutex_lock(&tls->lock);
    bool known = tls->peer.known;
    if (known)
        memcpy(hash, tls->peer.key, IOU_TLS_KEY_HASH);
    pthread_mutex_unlock(&tls->lock);
    return known ? 0 : -ENOENT;
}

int64_t iou_tls_read(iou_tls *tls, void *memory, uint64_t size) {
    uint64_t got = 0;
    tls_enter(tls);
    int64_t result = tls->failure;
    while (result == 0 && got < size && tls->records < MOST_RECORDS) {
        size_t count = 0;
        int done = SSL_read_ex(tls->ssl, (char *)memory + got, size - got, &count);
        got += count;
        tls->credit = min_u64(tls->credit + count, MOST_CREDIT);
        if (done != 1 && (result = outcome(tls, done)) == 0)
            break;
    }
    tls->emptied = tls->socket.partial = result == IOU_TLS_WANTS_INPUT;
    tls_exit(tls);
    return got ? (int64_t)got : result; /* the next call returns an error again */
}

bool tls_is_emptied(const iou_tls *tls) {
    return tls->emptied;
}

/* SSL_has_pending(3) is also true of a part of a record, which cannot be read. */
bool iou_tls_pending(iou_tls *tls) {
    tls_enter(tls);
    bool ended = tls->failure || SSL_get_shutdown(tls->ssl) & SSL_RECEIVED_SHUTDOWN;
    bool pending = ended || (!tls->socket.partial && SSL_has_pending(tls->ssl));
    tls_exit(tls);
    return pending;
}

int64_t iou_tls_write(iou_tls *tls, const void *memory, uint64_t size, bool more) {
    uint64_t sent = 0;
    tls_enter(tls);
    int64_t result = tls->failure;
    while (result == 0 && sent < size) {
        size_t count = 0;
        tls->socket.more = more || size - sent > RECORD_SIZE;
        int done = SSL_write_ex(tls->ssl, (const char *)memory + sent, min_u64(size - sent, RECORD_SIZE), &count);
        sent += count;
        if (done != 1 && (result = outcome(tls, done)) == 0)
            result = tls->failure = -EPIPE; /* the peer has ended */
    }
    tls_exit(tls);
    return sent ? (int64_t)sent : result;
}

int64_t tls_send_parts(iou_tls *tls, int fd, struct iovec *parts, unsigned count) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    if (!tls) {
        ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        return sent >= 0 ? sent : -errno;
    }
    int64_t sent = iou_tls_write(tls, parts->iov_base, parts->iov_len, count > 1);
    return sent == IOU_TLS_WANTS_ROOM ? -EAGAIN : sent == IOU_TLS_WANTS_INPUT ? -EPROTO : sent;
}

unsigned tls_skip_parts(struct iovec **parts, unsigned count, uint64_t sent) {
    for (; count && sent >= (*parts)->iov_len; (*parts)++, count--) {
        sent -= (*parts)->iov_len;
        (*parts)->iov_len = 0;
    }
    if (count) {
        (*parts)->iov_base = (char *)(*parts)->iov_base + sent;
        (*parts)->iov_len -= sent;
    }
    return count;
}

int tls_swap_fd(iou_tls *tls, int fd) {
    pthread_mutex_lock(&tls->lock);
    int before = tls->socket.fd;
    tls->socket.fd = fd;
    pthread_mutex_unlock(&tls->lock);
    return before;
}

void iou_tls_end(iou_tls *tls) {
    tls_enter(tls);
    tls->socket.more = false;
    if (!tls->failure && !SSL_in_init(tls->ssl))
        SSL_shutdown(tls->ssl); /* does not wait for the peer's close_notify (RFC 8446 6.1) */
    ERR_clear_error();
    tls_exit(tls);
}

const char *iou_tls_reason(const iou_tls *tls) {
    return tls->reason;
}
