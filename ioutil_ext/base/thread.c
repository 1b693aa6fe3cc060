/* SPDX-License-Identifier: Apache-2.0 */

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/numbers.h"
#include "base/thread.h"

/*
 * Large buffers are on the heap, nothing recurses, and the fibers of a lane have stacks of their own (fiber.c).
 * Python's callbacks (tests) need more than the 16 KiB minimum.
 */
#define STACK_SIZE (256 * KIB)

int thread_start(pthread_t *thread, void *(*main)(void *argument), void *argument) {
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_t id;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    pthread_attr_setdetachstate(&attributes, thread ? PTHREAD_CREATE_JOINABLE : PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread ? thread : &id, &attributes, main, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* ---- forks ------------------------------------------------------------------------------------------------------ */

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
