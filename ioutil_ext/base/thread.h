/* SPDX-License-Identifier: Apache-2.0 */

/* Starting threads, in one way for those of the engine and those of lanes; and forks (thread.c). */

#ifndef IOUTIL_BASE_THREAD_H
#define IOUTIL_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

/*
 * Start a thread that gets no signals: they are for the threads that know what to do with them. thread: to be joined;
 * NULL: it is detached. 0 or an errno.
 */
int thread_start(pthread_t *thread, void *(*main)(void *argument), void *argument);

/* ---- forks ------------------------------------------------------------------------------------------------------ */

/* What was made before a fork must not be used in the child: its locks may be held by threads that it does not have. */

/* Count forks from now on. */
void fork_watch(void);

/* Changes in a forked child: an object that keeps the number knows whether it was made before the fork. */
uint32_t fork_generation(void);

#endif
