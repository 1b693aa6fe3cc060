/* SPDX-License-Identifier: Apache-2.0 */

/* What lanes need of TLS besides api/tls.h. */

#ifndef IOUTIL_TLS_TLS_H
#define IOUTIL_TLS_TLS_H

#include <stdbool.h>

#include "api/tls.h"

/* Use another descriptor of the same socket; returns the one before. */
int tls_swap_fd(iou_tls *tls, int fd);

/* Whether the last iou_tls_read() has taken all that had arrived. For the thread that called it. */
bool tls_is_emptied(const iou_tls *tls);

#endif
