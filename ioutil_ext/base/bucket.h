/* SPDX-License-Identifier: Apache-2.0 */

/* Rate limits, for code that waits (bucket.c). */

#ifndef IOUTIL_BASE_BUCKET_H
#define IOUTIL_BASE_BUCKET_H

#include "api/bucket.h"

/* Return the lower rate of the bucket and its parent, in bytes per second, or 0 if there is no limit. */
uint64_t bucket_rate(const iou_bucket *bucket);

/* Wake all callers that sleep on the bucket. */
void bucket_wake(iou_bucket *bucket);

/* Return the number of wake-ups so far. To miss none, read it, then check whether to sleep, then pass it to
   bucket_sleep(). */
uint64_t bucket_wakes(iou_bucket *bucket);

/* Sleep until the number of wake-ups is not `wakes` any more, at most `ns`. */
void bucket_sleep(iou_bucket *bucket, uint64_t wakes, uint64_t ns);

#endif
