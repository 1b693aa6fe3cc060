/* SPDX-License-Identifier: Apache-2.0 */

/* Starting threads: one way for those of the engine and those of lanes. */

#ifndef IOUTIL_BASE_THREAD_H
#define IOUTIL_BASE_THREAD_H

#include <pthread.h>

/*
 * Start a thread that gets no signals: they are for the threads that know what to do with them. thread: to be joined;
 * NULL: it is detached. 0 or an errno.
 */
int thread_start(pthread_t *thread, void *(*main)(void *argument), void *argument);

#endif
