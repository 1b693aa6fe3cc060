/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Rate limits: token buckets. A lane waits in C until it may continue; Python asks how long it has to wait. Any thread
 * may call these functions. cffi's cdef() reads this after api/ioutil.h, whose conventions apply.
 */

#ifndef IOUTIL_API_BUCKET_H
#define IOUTIL_API_BUCKET_H

#include <stdint.h>

/*
 * A bucket. It may have a parent, whose rate is for all of its children together. Bytes are paid for in the order in
 * which they were taken: a caller may continue as soon as both the bucket and its parent have paid for all earlier
 * bytes.
 */
typedef struct iou_bucket iou_bucket;

/* Bytes that a request without data takes. */
enum { IOU_BUCKET_SMALL = 4096 };

/* Most bytes per second, 16 GiB: more than memory can be copied. */
#define IOU_BUCKET_MOST 17179869184

/* How many bytes had been taken from the bucket and from its parent before. */
typedef struct {
    uint64_t own, parents;
} iou_due;

typedef struct {
    uint64_t rate;    /* bytes per second: the lower rate of the bucket and its parent, or 0 for no limit */
    uint64_t limited; /* ns in which at least one caller has waited */
    uint32_t waiting; /* callers that wait now */
    uint32_t reserved;
} iou_bucket_stats;

/* Make a bucket without a limit. Keep the parent, if there is one, until this bucket is freed. Returns NULL without
   memory. */
iou_bucket *iou_bucket_new(iou_bucket *parent);

/* Free a bucket that nobody uses. */
void iou_bucket_free(iou_bucket *bucket);

/* Set the rate, in bytes per second; 0 is no limit. It also applies to callers that wait. Returns 0, or -EINVAL for a
   rate above IOU_BUCKET_MOST. */
int iou_bucket_set(iou_bucket *bucket, uint64_t rate);

/*
 * Take bytes. Returns 0, or how many ns the caller has to wait. A caller that has to wait calls iou_bucket_waited()
 * when its wait has ended. Without a rate this takes no lock.
 */
uint64_t iou_bucket_take(iou_bucket *bucket, uint64_t bytes, iou_due *due);

/* Return how many ns are left to wait. A change of the rate changes this. */
uint64_t iou_bucket_left(iou_bucket *bucket, const iou_due *due);

/* End a wait. */
void iou_bucket_waited(iou_bucket *bucket);

/* Give back bytes that were taken and not moved. */
void iou_bucket_give_back(iou_bucket *bucket, uint64_t bytes);

void iou_bucket_get_stats(iou_bucket *bucket, iou_bucket_stats *stats);

#endif
