/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Limits of rates: token buckets. Lanes wait for their own; Python asks how long to wait. All functions may be called
 * in any thread. cffi's cdef() reads this after api/ioutil.h, whose conventions apply.
 */

#ifndef IOUTIL_API_BUCKET_H
#define IOUTIL_API_BUCKET_H

#include <stdint.h>

/*
 * A bucket, and perhaps its parent, whose rate holds for all of its children together. What is taken is paid in the
 * order of calls: one may go on as soon as all that was taken before it is paid, by both.
 */
typedef struct iou_bucket iou_bucket;

/* Bytes that a request without data takes. */
enum { IOU_BUCKET_SMALL = 4096 };

/* Most bytes per second, 16 GiB: more than memory can be copied. */
#define IOU_BUCKET_MOST 17179869184

/* The bytes that were taken before, of the bucket and of its parent. */
typedef struct {
    uint64_t own, parents;
} iou_due;

typedef struct {
    uint64_t rate;    /* bytes per second, the lower one of the bucket and its parent; 0: none */
    uint64_t limited; /* ns in which at least one has waited */
    uint32_t waiting; /* how many wait now */
    uint32_t reserved;
} iou_bucket_stats;

/* Make a bucket without a rate. The parent, which may be NULL, lives until this one is freed. NULL: no memory. */
iou_bucket *iou_bucket_new(iou_bucket *parent);

/* Free a bucket that nobody uses. */
void iou_bucket_free(iou_bucket *bucket);

/* Set the rate, bytes per second; 0: none. It counts for those that wait, too. -EINVAL: above IOU_BUCKET_MOST. */
int iou_bucket_set(iou_bucket *bucket, uint64_t rate);

/*
 * Take bytes. Returns 0, or the ns that the caller has to wait. Then it waits, and calls iou_bucket_waited() at the end
 * of its wait. Takes no lock if there is no rate.
 */
uint64_t iou_bucket_take(iou_bucket *bucket, uint64_t bytes, iou_due *due);

/* Return for how many ns more to wait. Other rates may change it. */
uint64_t iou_bucket_left(iou_bucket *bucket, const iou_due *due);

/* End a wait. */
void iou_bucket_waited(iou_bucket *bucket);

/* Give back bytes that were taken, and not moved. */
void iou_bucket_give_back(iou_bucket *bucket, uint64_t bytes);

void iou_bucket_get_stats(iou_bucket *bucket, iou_bucket_stats *stats);

#endif
