/* SPDX-License-Identifier: Apache-2.0 */

/* What lanes need of TLS besides tls_api.h. */

#ifndef IOUTIL_TLS_H
#define IOUTIL_TLS_H

#include "internal.h"
#include "tls_api.h"

/* Use another descriptor of the same socket; returns the one before. */
int tls_swap_fd(iou_tls *tls, int fd);

#endif
