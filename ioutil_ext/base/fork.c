/* SPDX-License-Identifier: Apache-2.0 */

#include <pthread.h>
#include <stdatomic.h>

#include "base/fork.h"

static atomic_uint_fast32_t generation;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void child_after_fork(void) {
    atomic_fetch_add(&generation, 1);
}

static void watch(void) {
    pthread_atfork(NULL, NULL, child_after_fork);
}

void fork_watch(void) {
    pthread_once(&watch_once, watch);
}

uint32_t fork_generation(void) {
    return (uint32_t)atomic_load_explicit(&generation, memory_order_relaxed);
}
