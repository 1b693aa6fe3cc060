/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The storage engine under load, to be run with sanitizers. Each test aborts at the first thing that is wrong.
 */

#ifndef IOUTIL_STRESS_H
#define IOUTIL_STRESS_H

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "nbd/nbd.h"

/* ---- harness.c -------------------------------------------------------------------------------------------------- */

#define DEADLINE_MS 60000

#define CHECK(condition) check(condition, #condition, __FILE__, __LINE__)

void check(bool condition, const char *text, const char *file, int line);

/* xorshift64*: each thread has its own state, so that a seed gives the same requests. */
uint64_t next_random(uint64_t *state);
uint64_t below(uint64_t *state, uint64_t limit);

/* Where the images are. */
extern char directory[4000];
void file_path(char *path, size_t size, const char *name, unsigned number);
void make_file(const char *path, off_t size);

/* Wait for completions and take at most max of them. */
uint32_t reap(iou_queue *queue, iou_completion *completions, uint32_t max);
iou_completion reap_one(iou_queue *queue);

/* With nothing else in flight in the queue. */
iou_handle *open_image(iou_queue *queue, const char *path, uint32_t flags);
void close_image(iou_queue *queue, iou_handle *handle);

/* Stop the engine; everything must end. */
void stop_engine(iou_engine *engine);

/* ---- content.c -------------------------------------------------------------------------------------------------- */

/* mixed: some handles are buffered, beside direct ones. */
void test_content(const char *name, uint64_t operations, uint64_t seed, bool mixed);
void test_rough_storage(uint64_t operations, uint64_t seed);

/* Calls that are slow, short, interrupted or refused now and then. */
extern const iou_syscalls rough_syscalls;

/* Below limit, something different for each call, without a lock. */
uint64_t chance(uint64_t limit);

/* ---- edges.c ---------------------------------------------------------------------------------------------------- */

void test_execute(void);
void test_overlap(void);

/* ---- endings.c -------------------------------------------------------------------------------------------------- */

void test_cancel(unsigned rounds, uint64_t seed);
void test_stop(unsigned rounds, uint64_t seed);

/* ---- hash.c ----------------------------------------------------------------------------------------------------- */

void test_hash(unsigned rounds, uint64_t seed);

/* ---- durable.c -------------------------------------------------------------------------------------------------- */

/* rounds: records, one after the other. */
void test_durable(unsigned rounds, uint64_t seed);

/* ---- lanecounts.c, lanes.c -------------------------------------------------------------------------------------- */

void test_counts(void);

/* connections: to be served, over several engines. */
void test_lanes(unsigned connections, uint64_t seed);

/* ---- certificate.c ---------------------------------------------------------------------------------------------- */

/* Put a key and its certificate into a file. */
void make_certificate(const char *path);

/* ---- http.c ----------------------------------------------------------------------------------------------------- */

/* rounds: of each of some connections, on storage that works, and on such as does not. */
void test_http(unsigned rounds, uint64_t seed);

/* ---- records.c -------------------------------------------------------------------------------------------------- */

/* count: records of each writer. */
void test_records(unsigned count, uint64_t seed);

/* ---- qcow2.c ---------------------------------------------------------------------------------------------------- */

void test_qcow2(uint64_t operations, uint64_t seed);

/* A bucket with a parent for every fourth session, else NULL. Rates that hold a session up, and do not stop it. */
static inline iou_bucket *some_bucket(uint64_t *random) {
    static iou_bucket *parent; /* of all; never freed */
    iou_bucket *none = NULL, *made = below(random, 2) ? iou_bucket_new(NULL) : NULL;
    if (made && __atomic_compare_exchange_n(&parent, &none, made, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        CHECK(iou_bucket_set(made, 500 * MIB) == 0);
    else if (made)
        iou_bucket_free(made);
    iou_bucket *shared = __atomic_load_n(&parent, __ATOMIC_SEQ_CST);
    iou_bucket *bucket = below(random, 4) == 0 ? iou_bucket_new(shared) : NULL;
    if (bucket)
        CHECK(iou_bucket_set(bucket, below(random, 2) ? 0 : 20 * MIB + below(random, 200 * MIB)) == 0);
    return bucket;
}

/* Another rate for a session that runs, now and then. */
static inline void change_rate(iou_bucket *bucket, uint64_t *random) {
    if (bucket && below(random, 4) == 0)
        CHECK(iou_bucket_set(bucket, below(random, 3) ? 10 * MIB + below(random, 100 * MIB) : 0) == 0);
}

static inline void end_bucket(iou_bucket *bucket) {
    iou_bucket_stats stats;
    if (!bucket)
        return;
    iou_bucket_get_stats(bucket, &stats);
    CHECK(stats.waiting == 0);
    iou_bucket_free(bucket);
}

/* ---- nbdclient.c, remotelanes.c --------------------------------------------------------------------------------- */

void test_nbd_client(unsigned rounds, uint64_t seed);

/* connections: to be served, of several images. */
void test_remote_lanes(unsigned connections, uint64_t seed);

#endif
