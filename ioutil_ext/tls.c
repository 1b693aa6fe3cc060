/* SPDX-License-Identifier: Apache-2.0 */

/* TLS on non-blocking sockets: see tls_api.h. Nothing here waits. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "tls.h"

/*
 * What is received at once, if it is there: a few records, which OpenSSL decrypts where they lie. PUT of 64 MiB, 1
 * connection, busy machine, 5 turns: 113 ms of processor time with 32 KiB, 120 with 64, 135 with 128.
 */
#define RECEIVE_SIZE (32 * KIB)

/* What is encrypted at once, at most: the largest record. */
#define RECORD_SIZE (16 * KIB)

struct iou_tls_context {
    SSL_CTX *ssl;
    atomic_uint references;
};

struct iou_tls {
    iou_tls_context *context;
    SSL *ssl;
    pthread_mutex_t lock;
    int fd;
    int error;    /* errno of the socket */
    int failure;  /* -errno: nothing can be sent or received any more */
    bool drained; /* the socket had less than was asked for: not worth asking again before it is readable */
    bool ended;   /* it has nothing more */
    bool more;    /* what is sent is followed by more at once */
    char reason[IOU_TLS_REASON];
};

/* ---- reasons ---------------------------------------------------------------------------------------------------- */

/* NULL: OpenSSL has no words for it. */
static const char *reason_of(unsigned long code) {
    return ERR_SYSTEM_ERROR(code) ? strerrordesc_np(ERR_GET_REASON(code)) : ERR_reason_error_string(code);
}

/* Tell it, and forget the errors of this thread that OpenSSL has kept. */
static void set_reason(char *reason, const char *text) {
    strncpy(reason, text, IOU_TLS_REASON - 1);
    reason[IOU_TLS_REASON - 1] = 0;
    ERR_clear_error();
}

/* Tell the first of them. */
static void take_reason(char *reason, const char *otherwise) {
    unsigned long code = ERR_peek_error();
    const char *text = code ? reason_of(code) : NULL;
    set_reason(reason, text ? text : otherwise);
}

/* ---- the socket as OpenSSL sees it ------------------------------------------------------------------------------ */

static int bio_read(BIO *bio, char *memory, size_t size, size_t *count) {
    struct iou_tls *tls = BIO_get_data(bio);
    ssize_t got = -1;
    BIO_clear_retry_flags(bio);
    errno = EAGAIN;
    if (!tls->drained)
        while ((got = recv(tls->fd, memory, size, 0)) == -1 && errno == EINTR)
            ;
    if (got > 0) {
        *count = (size_t)got;
        tls->drained = (size_t)got < size;
        return 1;
    }
    if (got == -1 && errno == EAGAIN)
        BIO_set_retry_read(bio);
    else if (got == -1)
        tls->error = errno;
    else
        tls->ended = true;
    return 0;
}

static int bio_write(BIO *bio, const char *memory, size_t size, size_t *count) {
    struct iou_tls *tls = BIO_get_data(bio);
    ssize_t sent;
    BIO_clear_retry_flags(bio);
    while ((sent = send(tls->fd, memory, size, MSG_NOSIGNAL | (tls->more ? MSG_MORE : 0))) == -1 && errno == EINTR)
        ;
    if (sent >= 0) {
        *count = (size_t)sent;
        return 1;
    }
    if (errno == EAGAIN)
        BIO_set_retry_write(bio);
    else
        tls->error = errno;
    return 0;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    const struct iou_tls *tls = BIO_get_data(bio);
    (void)number, (void)pointer;
    if (command == BIO_CTRL_EOF)
        return tls->ended;
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

static BIO *new_bio(struct iou_tls *tls) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_method);
    BIO *bio = method ? BIO_new(method) : NULL;
    if (bio) {
        BIO_set_data(bio, tls);
        BIO_set_init(bio, 1);
    }
    return bio;
}

/* ---- contexts --------------------------------------------------------------------------------------------------- */

/* A daemon has nobody to ask. */
static int no_passphrase(char *memory, int size, int writing, void *data) {
    (void)memory, (void)size, (void)writing, (void)data;
    return -1;
}

static bool set_policy(SSL_CTX *ssl, const iou_tls_policy *policy) {
    static const unsigned char SESSIONS[] = "imageio";
    int verify = policy->asks_peer ? SSL_VERIFY_PEER : SSL_VERIFY_NONE;
    if (policy->needs_peer)
        verify |= SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
    SSL_CTX_set_verify(ssl, verify, NULL);
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(ssl), policy->verify_flags);
    SSL_CTX_set_options(ssl, policy->options);
    SSL_CTX_set_security_level(ssl, policy->security_level);
    SSL_CTX_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_read_ahead(ssl, 1);
    SSL_CTX_set_default_read_buffer_len(ssl, RECEIVE_SIZE);
    SSL_CTX_set_default_passwd_cb(ssl, no_passphrase);
    return SSL_CTX_set_min_proto_version(ssl, policy->minimum_version) &&
           (!policy->ciphers || SSL_CTX_set_cipher_list(ssl, policy->ciphers)) &&
           SSL_CTX_set_session_id_context(ssl, SESSIONS, sizeof(SESSIONS) - 1);
}

static bool load_authorities(SSL_CTX *ssl, const iou_tls_policy *policy) {
    if (policy->ca_file)
        return SSL_CTX_load_verify_locations(ssl, policy->ca_file, NULL);
    return !policy->asks_peer || SSL_CTX_set_default_verify_paths(ssl);
}

static bool load_files(SSL_CTX *ssl, const iou_tls_policy *policy) {
    if (!load_authorities(ssl, policy))
        return false;
    return !policy->chain_file || (SSL_CTX_use_certificate_chain_file(ssl, policy->chain_file) == 1 &&
                                   SSL_CTX_use_PrivateKey_file(ssl, policy->key_file, SSL_FILETYPE_PEM) == 1 &&
                                   SSL_CTX_check_private_key(ssl) == 1);
}

int iou_tls_context_new(const iou_tls_policy *policy, iou_tls_context **result, char *reason) {
    iou_tls_context *context = calloc(1, sizeof(*context));
    ERR_clear_error();
    if (context)
        context->ssl = SSL_CTX_new(policy->server ? TLS_server_method() : TLS_client_method());
    if (!context || !context->ssl) {
        take_reason(reason, "no memory");
        free(context);
        return -ENOMEM;
    }
    context->references = 1;
    if (!set_policy(context->ssl, policy) || !load_files(context->ssl, policy)) {
        take_reason(reason, "it is not accepted");
        iou_tls_context_free(context);
        return -EINVAL;
    }
    ERR_clear_error();
    *result = context;
    return 0;
}

void iou_tls_context_free(iou_tls_context *context) {
    if (atomic_fetch_sub(&context->references, 1) == 1) {
        SSL_CTX_free(context->ssl);
        free(context);
    }
}

/* ---- connections ------------------------------------------------------------------------------------------------ */

static bool set_up(struct iou_tls *tls, const char *host) {
    tls->ssl = SSL_new(tls->context->ssl);
    BIO *bio = tls->ssl ? new_bio(tls) : NULL;
    if (!bio)
        return false;
    SSL_set_bio(tls->ssl, bio, bio);
    if (!host) {
        SSL_set_accept_state(tls->ssl);
        return true;
    }
    SSL_set_connect_state(tls->ssl);
    X509_VERIFY_PARAM *checked = SSL_get0_param(tls->ssl);
    if (X509_VERIFY_PARAM_set1_ip_asc(checked, host))
        return true; /* SNI has no addresses (RFC 6066 3) */
    ERR_clear_error();
    return SSL_set1_host(tls->ssl, host) && SSL_set_tlsext_host_name(tls->ssl, host);
}

int iou_tls_new(iou_tls_context *context, int fd, const char *host, iou_tls **result) {
    struct iou_tls *tls = calloc(1, sizeof(*tls));
    if (!tls)
        return -ENOMEM;
    tls->fd = fd;
    tls->context = context;
    context->references++;
    pthread_mutex_init(&tls->lock, NULL);
    if (!set_up(tls, host)) {
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

/* Whether it failed because the peer's certificate is not to be believed. */
static bool is_rejected(int kind) {
    unsigned long code = ERR_peek_error();
    return kind == SSL_ERROR_SSL && ERR_GET_LIB(code) == ERR_LIB_SSL &&
           ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED;
}

/* What a call of OpenSSL that did not succeed is for the caller. The lock is held. */
static int outcome(struct iou_tls *tls, int returned) {
    int kind = SSL_get_error(tls->ssl, returned);
    if (kind == SSL_ERROR_WANT_READ)
        return IOU_TLS_WANTS_INPUT;
    if (kind == SSL_ERROR_WANT_WRITE)
        return IOU_TLS_WANTS_ROOM;
    if (kind == SSL_ERROR_ZERO_RETURN)
        return 0;
    if (is_rejected(kind)) {
        set_reason(tls->reason, X509_verify_cert_error_string(SSL_get_verify_result(tls->ssl)));
        return tls->failure = -EKEYREJECTED;
    }
    int error = tls->error ? tls->error : kind == SSL_ERROR_SSL ? EPROTO : ECONNRESET;
    take_reason(tls->reason, strerrorname_np(error));
    return tls->failure = -error;
}

static void begin(struct iou_tls *tls) {
    pthread_mutex_lock(&tls->lock);
    ERR_clear_error(); /* of others, which SSL_get_error() would take for ours */
    tls->drained = false;
}

static void end(struct iou_tls *tls) {
    pthread_mutex_unlock(&tls->lock);
}

int iou_tls_handshake(iou_tls *tls) {
    begin(tls);
    int result = tls->failure;
    if (result == 0) {
        int done = SSL_do_handshake(tls->ssl);
        result = done == 1 ? 0 : outcome(tls, done);
        if (done != 1 && result == 0)
            result = tls->failure = -ECONNRESET; /* the peer has ended */
    }
    end(tls);
    return result;
}

int64_t iou_tls_read(iou_tls *tls, void *memory, uint64_t size) {
    uint64_t got = 0;
    begin(tls);
    int64_t result = tls->failure;
    while (result == 0 && got < size) {
        size_t count = 0;
        int done = SSL_read_ex(tls->ssl, (char *)memory + got, size - got, &count);
        got += count;
        if (done != 1 && (result = outcome(tls, done)) == 0)
            break;
    }
    end(tls);
    return got ? (int64_t)got : result; /* an error comes again */
}

bool iou_tls_pending(iou_tls *tls) {
    begin(tls);
    bool ended = tls->failure || SSL_get_shutdown(tls->ssl) & SSL_RECEIVED_SHUTDOWN;
    bool pending = ended || SSL_has_pending(tls->ssl);
    end(tls);
    return pending;
}

int64_t iou_tls_write(iou_tls *tls, const void *memory, uint64_t size, bool more) {
    uint64_t sent = 0;
    begin(tls);
    int64_t result = tls->failure;
    while (result == 0 && sent < size) {
        size_t count = 0;
        tls->more = more || size - sent > RECORD_SIZE;
        int done = SSL_write_ex(tls->ssl, (const char *)memory + sent, min_u64(size - sent, RECORD_SIZE), &count);
        sent += count;
        if (done != 1 && (result = outcome(tls, done)) == 0)
            result = tls->failure = -EPIPE; /* the peer has ended */
    }
    end(tls);
    return sent ? (int64_t)sent : result;
}

int tls_swap_fd(iou_tls *tls, int fd) {
    pthread_mutex_lock(&tls->lock);
    int before = tls->fd;
    tls->fd = fd;
    pthread_mutex_unlock(&tls->lock);
    return before;
}

void iou_tls_end(iou_tls *tls) {
    begin(tls);
    tls->more = false;
    if (!tls->failure && !SSL_in_init(tls->ssl))
        SSL_shutdown(tls->ssl); /* the peer's farewell is not waited for (RFC 8446 6.1) */
    ERR_clear_error();
    end(tls);
}

const char *iou_tls_reason(const iou_tls *tls) {
    return tls->reason;
}
