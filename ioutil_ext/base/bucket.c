/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Token buckets. A bucket counts the bytes that were taken, and those that its rate has granted. Bytes are taken at
 * once, and the taker waits until all bytes before its own are granted. So the order is that of the calls, the bytes of
 * one taker may be more than the burst, and a changed rate applies to takers that wait.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "api/ioutil.h"
#include "base/bucket.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "base/waiter.h"

#define SECOND UINT64_C(1000000000)

/* Bytes that were not used are granted later, for at most a quarter of a second: a thread that wakes late, or storage
   that pauses, loses nothing, and in 9 s the rate is at most 3 % higher. */
#define BURSTS 4

struct iou_bucket {
    iou_bucket *parent;
    atomic_uint_fast64_t rate;
    pthread_mutex_t lock; /* a leaf; guards all below */
    struct link waiters;
    uint64_t taken, granted, settled; /* bytes, and ns until when the time is granted */
    uint64_t wakes;
    uint32_t waiting;
    uint64_t since, limited; /* ns: when the first of those that wait began, and before that */
};

_Static_assert(IOU_BUCKET_MOST <= UINT64_MAX / SECOND, "bytes of a second in ns");

iou_bucket *iou_bucket_new(iou_bucket *parent) {
    iou_bucket *bucket = calloc(1, sizeof(*bucket));
    if (!bucket)
        return NULL;
    bucket->parent = parent;
    pthread_mutex_init(&bucket->lock, NULL);
    link_init(&bucket->waiters);
    return bucket;
}

void iou_bucket_free(iou_bucket *bucket) {
    pthread_mutex_destroy(&bucket->lock);
    free(bucket);
}

/* ---- one level; the lock is held -------------------------------------------------------------------------------- */

/* Grant the bytes of the time until now. The time of a part of a byte is kept for the next call. */
static void settle_bucket(iou_bucket *bucket) {
    uint64_t now = now_ns(), rate = bucket->rate, passed = now - bucket->settled;
    uint64_t most = bucket->taken + rate / BURSTS, bytes = rate ? passed % SECOND * rate / SECOND : 0;
    bucket->granted += passed / SECOND * rate + bytes;
    bucket->settled += passed - passed % SECOND + (rate ? divide_up(bytes * SECOND, rate) : 0);
    if (rate == 0 || bucket->granted > most) {
        bucket->granted = most;
        bucket->settled = now;
    }
}

/* The caller wakes those in *served without the lock. */
static void wake_waiters(iou_bucket *bucket, struct link *served) {
    bucket->wakes++;
    waiters_serve(&bucket->waiters, served);
}

/* ---- one level -------------------------------------------------------------------------------------------------- */

/* Take bytes; returns those that were taken before. */
static uint64_t take_bytes(iou_bucket *bucket, uint64_t bytes) {
    if (bucket->rate == 0)
        return 0;
    pthread_mutex_lock(&bucket->lock);
    uint64_t before = bucket->taken;
    settle_bucket(bucket);
    bucket->taken += bytes;
    pthread_mutex_unlock(&bucket->lock);
    return before;
}

/* Return the ns until `due` bytes are granted. */
static uint64_t left(iou_bucket *bucket, uint64_t due) {
    if (due == 0 || bucket->rate == 0)
        return 0;
    pthread_mutex_lock(&bucket->lock);
    settle_bucket(bucket);
    uint64_t rate = bucket->rate, missing = due > bucket->granted ? due - bucket->granted : 0;
    pthread_mutex_unlock(&bucket->lock);
    return rate ? divide_up(min_u64(missing, IOU_BUCKET_MOST) * SECOND, rate) : 0;
}

static void give_bytes_back(iou_bucket *bucket, uint64_t bytes) {
    if (bucket->rate == 0 || bytes == 0)
        return;
    struct link served;
    pthread_mutex_lock(&bucket->lock);
    bucket->granted += bytes;
    wake_waiters(bucket, &served);
    pthread_mutex_unlock(&bucket->lock);
    waiters_wake(&served);
}

/* ---- both levels ------------------------------------------------------------------------------------------------ */

uint64_t iou_bucket_left(iou_bucket *bucket, const iou_due *due) {
    uint64_t own = left(bucket, due->own);
    return bucket->parent ? max_u64(own, left(bucket->parent, due->parents)) : own;
}

uint64_t iou_bucket_take(iou_bucket *bucket, uint64_t bytes, iou_due *due) {
    due->own = take_bytes(bucket, bytes);
    due->parents = bucket->parent ? take_bytes(bucket->parent, bytes) : 0;
    uint64_t ns = due->own || due->parents ? iou_bucket_left(bucket, due) : 0;
    if (ns == 0)
        return 0;
    pthread_mutex_lock(&bucket->lock);
    if (bucket->waiting++ == 0)
        bucket->since = now_ns();
    pthread_mutex_unlock(&bucket->lock);
    return ns;
}

void iou_bucket_waited(iou_bucket *bucket) {
    pthread_mutex_lock(&bucket->lock);
    if (--bucket->waiting == 0)
        bucket->limited += now_ns() - bucket->since;
    pthread_mutex_unlock(&bucket->lock);
}

void iou_bucket_give_back(iou_bucket *bucket, uint64_t bytes) {
    give_bytes_back(bucket, bytes);
    if (bucket->parent)
        give_bytes_back(bucket->parent, bytes);
}

int iou_bucket_set(iou_bucket *bucket, uint64_t rate) {
    if (rate > IOU_BUCKET_MOST)
        return -EINVAL;
    struct link served;
    pthread_mutex_lock(&bucket->lock);
    settle_bucket(bucket); /* by the rate before */
    bucket->rate = rate;
    settle_bucket(bucket);
    wake_waiters(bucket, &served);
    pthread_mutex_unlock(&bucket->lock);
    waiters_wake(&served);
    return 0;
}

void iou_bucket_get_stats(iou_bucket *bucket, iou_bucket_stats *stats) {
    pthread_mutex_lock(&bucket->lock);
    *stats = (iou_bucket_stats){
        .rate = bucket_rate(bucket),
        .limited = bucket->limited + (bucket->waiting ? now_ns() - bucket->since : 0),
        .waiting = bucket->waiting,
    };
    pthread_mutex_unlock(&bucket->lock);
}

uint64_t bucket_rate(const iou_bucket *bucket) {
    uint64_t own = bucket->rate, parents = bucket->parent ? bucket->parent->rate : 0;
    return own && parents ? min_u64(own, parents) : own + parents;
}

/* ---- sleep ------------------------------------------------------------------------------------------------------ */

void bucket_wake(iou_bucket *bucket) {
    struct link served;
    pthread_mutex_lock(&bucket->lock);
    wake_waiters(bucket, &served);
    pthread_mutex_unlock(&bucket->lock);
    waiters_wake(&served);
}

uint64_t bucket_wakes(iou_bucket *bucket) {
    pthread_mutex_lock(&bucket->lock);
    uint64_t wakes = bucket->wakes;
    pthread_mutex_unlock(&bucket->lock);
    return wakes;
}

void bucket_sleep(iou_bucket *bucket, uint64_t wakes, uint64_t ns) {
    pthread_mutex_lock(&bucket->lock);
    bool sleeps = bucket->wakes == wakes;
    struct waiter waiter;
    if (sleeps)
        waiter_join(&waiter, &bucket->waiters);
    pthread_mutex_unlock(&bucket->lock);
    if (sleeps)
        waiter_sleep_in(&waiter, &bucket->lock, now_ns() + ns);
}

/* ---- sharing ---------------------------------------------------------------------------------------------------- */

/* The rule by which users share scarce resources. */
int iou_may_have(uint64_t used, uint64_t more, uint64_t left) {
    return more <= left && used + more <= 2 * (left - more);
}
