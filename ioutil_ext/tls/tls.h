/* SPDX-License-Identifier: Apache-2.0 */

/* What lanes and the client of NBD servers need of TLS besides api/tls.h. */

#ifndef IOUTIL_TLS_TLS_H
#define IOUTIL_TLS_TLS_H

#include <stdbool.h>
#include <sys/uio.h>

#include "api/tls.h"

/* Use another descriptor of the same socket; returns the one before. */
int tls_swap_fd(iou_tls *tls, int fd);

/* Whether the last iou_tls_read() has taken all that had arrived. For the thread that called it. */
bool tls_is_emptied(const iou_tls *tls);

/* Send parts on a socket without waiting; tls: NULL: as they are. Returns how many bytes were sent, or -errno. */
int64_t tls_send_parts(iou_tls *tls, int fd, struct iovec *parts, unsigned count);

/* Move the parts past bytes that were sent: those that are sent have a length of 0. Returns how many are left. */
unsigned tls_skip_parts(struct iovec **parts, unsigned count, uint64_t sent);

#endif
