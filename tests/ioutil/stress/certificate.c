/* SPDX-License-Identifier: Apache-2.0 */

/* A certificate that nobody has signed, for both ends of a connection that know each other. */

#include <openssl/pem.h>
#include <openssl/x509.h>

#include "stress.h"

static X509 *certify(EVP_PKEY *key) {
    X509 *made = X509_new();
    CHECK(made && X509_set_version(made, 2) && ASN1_INTEGER_set(X509_get_serialNumber(made), 1));
    CHECK(X509_gmtime_adj(X509_getm_notBefore(made), 0) && X509_gmtime_adj(X509_getm_notAfter(made), 86400));
    CHECK(X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_ASC, (const unsigned char *)"x", -1,
                                     -1, 0));
    CHECK(X509_set_issuer_name(made, X509_get_subject_name(made)) && X509_set_pubkey(made, key));
    CHECK(X509_sign(made, key, EVP_sha256()));
    return made;
}

void make_certificate(const char *path) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = certify(key);
    FILE *file = fopen(path, "w");
    CHECK(file && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) && PEM_write_X509(file, certificate));
    CHECK(fclose(file) == 0);
    X509_free(certificate);
    EVP_PKEY_free(key);
}
