/* SPDX-License-Identifier: Apache-2.0 */

/* Images, one for each file or device in the process. */

#include <stdlib.h>

#include "base/numbers.h"
#include "image/image.h"

/*
 * Bytes of the first zeroing call; image/zero_methods.c adapts them. On a device the kernel may write the zeros: eight
 * such calls at a time take 0.64 s at 200 MB/s. File systems only change metadata.
 */
#define FIRST_FILE_STEP (128 * MIB)
#define FIRST_DEVICE_STEP (16 * MIB)

static struct image *registry;
/* The highest generation of all closed images. An image that is opened again starts above it: otherwise a change
   meanwhile, by another program, would not be noticed. */
static uint64_t last_generation;
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

static void prepare_fork(void) {
    pthread_mutex_lock(&registry_lock);
}

static void parent_after_fork(void) {
    pthread_mutex_unlock(&registry_lock);
}

/* A forked child starts with an empty registry: threads of the parent may hold the locks of the images. */
static void forget_images_after_fork(void) {
    registry = NULL;
    pthread_mutex_unlock(&registry_lock);
}

static void watch_forks(void) {
    pthread_atfork(prepare_fork, parent_after_fork, forget_images_after_fork);
}

/* The memory of the image is all zeros before. */
void image_init(struct image *image, iou_type type, dev_t device, ino_t inode) {
    image->type = type;
    image->device = device;
    image->inode = inode;
    image->waits_for = device;
    image->grows = type == IOU_FILE;
    pthread_mutex_init(&image->size_lock, NULL);
    pthread_mutex_init(&image->lock_lock, NULL);
    image->lock_fd = -1;
    claims_init(&image->claims);
    atomic_init(&image->step, type == IOU_FILE ? FIRST_FILE_STEP : FIRST_DEVICE_STEP);
    atomic_init(&image->can[CAN_PUNCH_HOLE], true);
    atomic_init(&image->can[CAN_ZERO_RANGE], true);
    atomic_init(&image->can[CAN_FALLOCATE], type == IOU_FILE);
    atomic_init(&image->can[CAN_BLKZEROOUT], type == IOU_BLOCK);
    atomic_init(&image->can[CAN_SEEK_HOLE], type == IOU_FILE);
}

/* Above the numbers of the kernel, and below those of nbd_client/. */
#define SEVERAL (UINT64_C(1) << 62)

/* Hash a device number. Sums of hashes differ where sums of numbers do not, because partitions of a disk have
   consecutive numbers. */
static uint64_t scatter(uint64_t number) {
    number *= UINT64_C(0x9e3779b97f4a7c15); /* 2^64 by the golden ratio */
    return (number ^ number >> 32) * UINT64_C(0x9e3779b97f4a7c15);
}

uint64_t image_devices(const uint64_t *devices, uint32_t count) {
    uint64_t sum = 0;
    uint32_t differing = 0;
    for (uint32_t i = 0, j; i < count; i++) {
        for (j = 0; devices[j] != devices[i]; j++)
            ;
        if (j < i)
            continue;
        sum += scatter(devices[i]);
        differing++;
    }
    return differing == 1 ? devices[0] : SEVERAL | sum % SEVERAL;
}

void image_destroy(struct image *image) {
    pthread_mutex_destroy(&image->size_lock);
    pthread_mutex_destroy(&image->lock_lock);
    claims_destroy(&image->claims);
}

void image_begin_generations(struct image *image) {
    pthread_mutex_lock(&registry_lock);
    image->activity = (last_generation + 1) << WRITERS_BITS;
    pthread_mutex_unlock(&registry_lock);
}

void image_end_generations(const struct image *image) {
    pthread_mutex_lock(&registry_lock);
    last_generation = max_u64(last_generation, image->activity >> WRITERS_BITS);
    pthread_mutex_unlock(&registry_lock);
}

static struct image *image_new(iou_type type, dev_t device, ino_t inode) {
    struct image *image = calloc(1, sizeof(*image));
    if (image)
        image_init(image, type, device, inode);
    return image;
}

struct image *image_get(iou_type type, dev_t device, ino_t inode) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&registry_lock);
    struct image *image = registry;
    while (image && (image->type != type || image->device != device || image->inode != inode))
        image = image->next;
    if (!image && (image = image_new(type, device, inode))) {
        image->activity = (last_generation + 1) << WRITERS_BITS;
        image->next = registry;
        registry = image;
    }
    if (image)
        image->refs++;
    pthread_mutex_unlock(&registry_lock);
    return image;
}

void image_put(struct image *image) {
    pthread_mutex_lock(&registry_lock);
    bool last = --image->refs == 0;
    if (last) {
        struct image **where = &registry;
        while (*where != image)
            where = &(*where)->next;
        *where = image->next;
        last_generation = max_u64(last_generation, image->activity >> WRITERS_BITS);
    }
    pthread_mutex_unlock(&registry_lock);
    if (last) {
        image_destroy(image);
        free(image);
    }
}
