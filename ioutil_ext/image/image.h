/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Images: what all handles of one file or device share (image.c). The lock of the registry and size_lock are leaves;
 * only size_lock is held over system calls on storage.
 */

#ifndef IOUTIL_IMAGE_IMAGE_H
#define IOUTIL_IMAGE_IMAGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "api/ioutil.h"
#include "image/admission.h"

/* The calls that zero are first, in the order of iou_syscall. */
enum { CAN_PUNCH_HOLE, CAN_ZERO_RANGE, CAN_FALLOCATE, CAN_BLKZEROOUT, CAN_SEEK_HOLE, CAPABILITIES };
enum { CONTENT_UNKNOWN, CONTENT_ZERO, CONTENT_WRITTEN };

/* How the data of a long request is cut (api/external.h); piece: 0: as the frontend does. */
struct pieces {
    uint64_t piece, other_piece;
    uint32_t ahead;
};

/* A file or device, once in the process however many handles name it; or what somebody else has. Lives as long as its
   handles. */
struct image {
    struct image *next; /* registry; with refs under its lock */
    uint32_t refs;
    iou_type type;
    dev_t device; /* st_dev of a file, st_rdev of a block device */
    ino_t inode;  /* 0 for block devices */
    bool grows;   /* a write past the end makes it larger */
    struct pieces pieces;

    pthread_mutex_t size_lock; /* held by what changes the size, from the fresh fstat to the end of the change */
    atomic_uint_fast64_t size; /* a lower bound of the real one: sizes only grow */

    atomic_bool can[CAPABILITIES];           /* true -> false only */
    atomic_bool given_up[IOU_ZEROING_CALLS]; /* refused once, and told in a completion */
    atomic_bool fallocate_proven;            /* it worked once */
    atomic_uint_fast64_t step;               /* longest range for one zeroing call */
    atomic_uint_fast64_t activity;           /* generation << WRITERS_BITS | writers in flight */
    atomic_uint_fast32_t flush_failures;
    atomic_int flush_error; /* errno of the last one */
    atomic_uint_fast32_t direct_handles, buffered_handles;
    atomic_int content; /* CONTENT_... */

    struct claims claims;
};

/* One that is in no registry: external.c has it. */
void image_init(struct image *image, iou_type type, dev_t device, ino_t inode);
void image_destroy(struct image *image);

/* The image, made if need be; NULL: no memory. Each gives one reference, image_put() ends it. */
struct image *image_get(iou_type type, dev_t device, ino_t inode);
void image_put(struct image *image);

/* image->activity: the generation above, the number of writers in flight below. */
#define WRITERS_BITS 16
#define WRITERS_MASK (((uint64_t)1 << WRITERS_BITS) - 1)

#endif
