/* SPDX-License-Identifier: Apache-2.0 */

/* What lanes need of TLS besides api/tls.h. */

#ifndef IOUTIL_TLS_TLS_H
#define IOUTIL_TLS_TLS_H

#include "api/tls.h"

/* Use another descriptor of the same socket; returns the one before. */
int tls_swap_fd(iou_tls *tls, int fd);

#endif
