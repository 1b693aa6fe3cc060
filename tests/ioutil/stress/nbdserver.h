/* SPDX-License-Identifier: Apache-2.0 */

/* An NBD server that is in its transmission phase, honest or not (nbdserver.c). */

#ifndef IOUTIL_STRESS_NBDSERVER_H
#define IOUTIL_STRESS_NBDSERVER_H

#include "api/nbd_client.h"
#include "stress.h"

/* What an image's server does. */
struct nbd_server {
    pthread_mutex_t lock; /* of the content */
    char *content;
    uint64_t size;
    uint32_t flags;
    bool structured, extended;
    bool hostile; /* now and then it dies, lies, stops in the middle, or answers what was not asked */
    atomic_uint connections;
};

/* Serve a new connection by a thread of its own; returns the client's end, which does not block. */
int nbd_server_connect(struct nbd_server *server, uint64_t seed);

/* ---- nbdclient.c, nbdimage.c ------------------------------------------------------------------------------------ */

/* Begin a session. */
void nbd_begin(iou_handle *handle, struct nbd_server *server, uint64_t *random);

/* Connect again when operations wait for that, or refuse to. */
void nbd_look_after(iou_handle *handle, struct nbd_server *server, uint64_t *random);

/* End the session and free the handle. Lanes may still use it. */
void nbd_leave(iou_handle *handle, struct nbd_server *server);

/* An image of zeros that a server has, with a thread that connects it. */
struct nbd_image {
    iou_handle *handle;
    struct nbd_server server;
    pthread_t thread;
    uint64_t random;
    atomic_bool ends;
};

void nbd_image_start(struct nbd_image *image, uint64_t size, bool hostile, uint64_t seed);
void nbd_image_stop(struct nbd_image *image);

#endif
