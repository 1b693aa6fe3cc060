/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Images: the state that all handles of one file or device share (image.c). The lock of the registry, size_lock and
 * lock_lock are leaves. Only the latter two are held over system calls on storage.
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

/* The zeroing calls come first, in the order of iou_syscall. */
enum { CAN_PUNCH_HOLE, CAN_ZERO_RANGE, CAN_FALLOCATE, CAN_BLKZEROOUT, CAN_SEEK_HOLE, CAPABILITIES };
enum { CONTENT_UNKNOWN, CONTENT_ZERO, CONTENT_WRITTEN };

/* How a long request is cut into pieces (api/nbd_client.h). If `piece` is 0, the frontend decides. */
struct pieces {
    uint64_t piece;
    uint32_t ahead;
};

/* A file or device, of which there is one in the process for all of its handles; or an image of a server or with a
   format. It lives as long as its handles. */
struct image {
    struct image *next; /* in the registry, whose lock guards next and refs */
    uint32_t refs;
    iou_type type;
    dev_t device;       /* st_dev of a file, st_rdev of a block device */
    ino_t inode;        /* 0 for block devices */
    uint64_t waits_for; /* the quotas of threads and memory that it uses: its device, or image_devices() of a chain */
    bool grows;         /* a write past the end makes it larger */
    atomic_bool in_memory; /* a file of tmpfs, so calls only copy */
    struct pieces pieces;

    pthread_mutex_t size_lock; /* held during a change of the size, from the fresh fstat to the end of the change */
    atomic_uint_fast64_t size; /* a lower bound of the real size: sizes only grow */

    atomic_bool can[CAPABILITIES];           /* change from true to false only */
    atomic_bool given_up[IOU_ZEROING_CALLS]; /* the call was refused, and a completion has reported it */
    atomic_bool fallocate_proven;            /* fallocate has worked once */
    atomic_uint_fast64_t step;               /* most bytes of one zeroing call */
    atomic_uint_fast64_t activity;           /* generation << WRITERS_BITS | number of changes that run */
    atomic_uint_fast32_t flush_failures;
    atomic_int flush_error; /* errno of the last failure */
    atomic_uint_fast32_t direct_handles, buffered_handles;
    atomic_int content; /* CONTENT_... */

    atomic_uint_fast32_t writers; /* handles that may write */
    struct claims claims;

    pthread_mutex_t lock_lock; /* guards the members below, also while the locks are taken */
    int lock_fd;               /* its open file description has the locks; -1 without locks */
    uint32_t lock_holders;     /* handles */
    int lock_use;              /* how the holders use the image; see locks.c */
    atomic_bool locked;        /* false although there is a holder if the file system has no such locks */
};

/* Initialise and destroy an image that is not in the registry, as those of nbd_client/ and qcow2/. */
void image_init(struct image *image, iou_type type, dev_t device, ino_t inode);
void image_destroy(struct image *image);

/* Call these at the beginning and at the end of an image that is not in the registry. They keep the generations of each
   image above those of all earlier images. */
void image_begin_generations(struct image *image);
void image_end_generations(const struct image *image);

/* Get a reference to an image, and make the image if there is none. Returns NULL without memory. End the reference by
   image_put(). */
struct image *image_get(iou_type type, dev_t device, ino_t inode);
void image_put(struct image *image);

/* Return a number that stands for a set of devices. For one device it is that device. So operations that hang on a set
   of devices do not stop images that use only one device of the set. */
uint64_t image_devices(const uint64_t *devices, uint32_t count);

/* image->activity has the generation in its high bits, and the number of changes that run in the low ones. */
#define WRITERS_BITS 16
#define WRITERS_MASK (((uint64_t)1 << WRITERS_BITS) - 1)

#endif
