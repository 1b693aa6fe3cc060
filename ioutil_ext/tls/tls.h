/* SPDX-License-Identifier: Apache-2.0 */

/* The functions of TLS that lanes and the client of NBD servers need besides api/tls.h. */

#ifndef IOUTIL_TLS_TLS_H
#define IOUTIL_TLS_TLS_H

#include <stdbool.h>
#include <sys/uio.h>

#include "api/tls.h"

/* Use another descriptor of the same socket. Returns the previous one. */
int tls_swap_fd(iou_tls *tls, int fd);

/* Return whether the last iou_tls_read() has taken all that had arrived. For the thread that called it. */
bool tls_is_emptied(const iou_tls *tls);

/* Send parts on a socket without waiting, without TLS if `tls` is NULL. Returns how many bytes were sent, or -errno. */
int64_t tls_send_parts(iou_tls *tls, int fd, struct iovec *parts, unsigned count);

/* Move the parts past bytes that were sent. Parts that are sent as a whole get a length of 0. Returns how many parts
   are left. */
unsigned tls_skip_parts(struct iovec **parts, unsigned count, uint64_t sent);

#endif
