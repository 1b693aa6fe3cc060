/* SPDX-License-Identifier: Apache-2.0 */

/* The common state of connections: policy, authorities and our certificate. Also OpenSSL's texts of failures. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include "base/numbers.h"
#include "tls/parts.h"

/*
 * Most bytes that are received at once: a few records, which OpenSSL decrypts in place. PUT of 64 MiB, 1 connection,
 * busy machine, 5 turns: 113 ms of processor time with 32 KiB, 120 with 64, 135 with 128.
 */
#define RECEIVE_SIZE (32 * KIB)

/* ---- reasons ---------------------------------------------------------------------------------------------------- */

/* NULL: OpenSSL has no text for it. */
static const char *reason_of(unsigned long code) {
    return ERR_SYSTEM_ERROR(code) ? strerrordesc_np(ERR_GET_REASON(code)) : ERR_reason_error_string(code);
}

void tls_set_reason(char *reason, const char *text) {
    strncpy(reason, text, IOU_TLS_REASON - 1);
    reason[IOU_TLS_REASON - 1] = 0;
    ERR_clear_error();
}

void tls_take_reason(char *reason, const char *otherwise) {
    unsigned long code = ERR_peek_error();
    const char *text = code ? reason_of(code) : NULL;
    tls_set_reason(reason, text ? text : otherwise);
}

/* ---- contexts --------------------------------------------------------------------------------------------------- */

/* No passphrase is asked for: a daemon has no terminal. */
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
    /* The end of a connection without close_notify is no error: HTTP and NBD have the lengths of all messages, so no
       cut is unnoticed. Contexts of some versions of Python lack this option. */
    SSL_CTX_set_options(ssl, policy->options | SSL_OP_IGNORE_UNEXPECTED_EOF);
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

/* No default paths: an OpenSSL that is linked into the extension has those of the host that built it. */
static bool load_authorities(SSL_CTX *ssl, const iou_tls_policy *policy) {
    if (!policy->ca_file && !policy->ca_dir)
        return true;
    return SSL_CTX_load_verify_locations(ssl, policy->ca_file, policy->ca_dir);
}

static bool load_files(SSL_CTX *ssl, const iou_tls_policy *policy) {
    if (!load_authorities(ssl, policy))
        return false;
    return !policy->chain_file || (SSL_CTX_use_certificate_chain_file(ssl, policy->chain_file) == 1 &&
                                   SSL_CTX_use_PrivateKey_file(ssl, policy->key_file, SSL_FILETYPE_PEM) == 1 &&
                                   SSL_CTX_check_private_key(ssl) == 1);
}

static bool hash_key(X509 *certificate, uint8_t *hash) {
    uint8_t *key = NULL;
    int size = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(certificate), &key);
    bool done = size > 0 && EVP_Digest(key, (size_t)size, hash, NULL, EVP_sha256(), NULL) == 1;
    OPENSSL_free(key);
    return done;
}

/* OpenSSL keeps no certificate that it does not trust, so its key is hashed before. The connection's lock is held. */
static int verify_server(X509_STORE_CTX *chain, void *unused) {
    SSL *ssl = X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx());
    X509 *certificate = X509_STORE_CTX_get0_cert(chain);
    struct tls_peer *peer = ssl ? SSL_get_app_data(ssl) : NULL;
    (void)unused;
    if (peer)
        peer->known = certificate && hash_key(certificate, peer->key);
    return X509_verify_cert(chain);
}

const char *iou_tls_library(void) {
    return OpenSSL_version(OPENSSL_VERSION);
}

int iou_tls_context_new(const iou_tls_policy *policy, iou_tls_context **result, char *reason) {
    iou_tls_context *context = calloc(1, sizeof(*context));
    ERR_clear_error();
    if (context)
        context->ssl = SSL_CTX_new(policy->server ? TLS_server_method() : TLS_client_method());
    if (!context || !context->ssl) {
        tls_take_reason(reason, "no memory");
        free(context);
        return -ENOMEM;
    }
    context->references = 1;
    if (!policy->server)
        SSL_CTX_set_cert_verify_callback(context->ssl, verify_server, NULL);
    if (!set_policy(context->ssl, policy) || !load_files(context->ssl, policy)) {
        tls_take_reason(reason, "it is not accepted");
        iou_tls_context_free(context);
        return -EINVAL;
    }
    ERR_clear_error();
    *result = context;
    return 0;
}

int64_t iou_tls_context_expires(const iou_tls_context *context) {
    const X509 *certificate = SSL_CTX_get0_certificate(context->ssl);
    struct tm end;
    return certificate && ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) ? timegm(&end) : 0;
}

void iou_tls_context_free(iou_tls_context *context) {
    if (atomic_fetch_sub(&context->references, 1) == 1) {
        SSL_CTX_free(context->ssl);
        free(context);
    }
}
