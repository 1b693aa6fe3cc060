/* SPDX-License-Identifier: Apache-2.0 */

/* An image for lanes that an NBD server has, which may die and lie. */

#include "base/numbers.h"
#include "nbdserver.h"

static void *connect_again(void *argument) {
    struct nbd_image *image = argument;
    while (!image->ends) {
        nbd_look_after(image->handle, &image->server, &image->random);
        usleep(500);
    }
    return NULL;
}

void nbd_image_start(struct nbd_image *image, uint64_t size, bool hostile, uint64_t seed) {
    const iou_nbd_client_options options = {
        .name = "nbd",
        .device = UINT64_C(1) << 63 | 5,
        .size = size,
        .piece = IOU_NBD_PIECE,
        .ahead = 3,
        .block_size = 1,
        .allocation = true,
        .close_ms = 100,
    };
    *image = (struct nbd_image){
        .server = {.content = calloc(1, size), .size = size, .flags = 0x0ced, .structured = true, .hostile = hostile},
        .random = seed | 1,
    };
    CHECK(image->server.content && iou_nbd_client_new(&options, &image->handle) == 0);
    pthread_mutex_init(&image->server.lock, NULL);
    nbd_begin(image->handle, &image->server, &image->random);
    CHECK(pthread_create(&image->thread, NULL, connect_again, image) == 0);
}

void nbd_image_stop(struct nbd_image *image) {
    image->ends = true;
    CHECK(pthread_join(image->thread, NULL) == 0);
    nbd_leave(image->handle, &image->server);
    pthread_mutex_destroy(&image->server.lock);
    free(image->server.content);
}
