/* SPDX-License-Identifier: Apache-2.0 */

/* Limits of rates, for those that wait (bucket.c). */

#ifndef IOUTIL_BASE_BUCKET_H
#define IOUTIL_BASE_BUCKET_H

#include "api/bucket.h"

/* Return the rate, bytes per second: the lower one of the bucket and its parent; 0: there is none. */
uint64_t bucket_rate(const iou_bucket *bucket);

/* Wake all that sleep on the bucket. */
void bucket_wake(iou_bucket *bucket);

/* Return the number of wake-ups so far. Who reads it, looks why not to sleep, and then sleeps misses no wake-up. */
uint64_t bucket_wakes(iou_bucket *bucket);

/* Sleep for at most so many ns, until there was another wake-up than those. */
void bucket_sleep(iou_bucket *bucket, uint64_t wakes, uint64_t ns);

#endif
