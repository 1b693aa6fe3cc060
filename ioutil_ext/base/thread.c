/* SPDX-License-Identifier: Apache-2.0 */

#include <signal.h>

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
