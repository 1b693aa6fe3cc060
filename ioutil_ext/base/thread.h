/* SPDX-License-Identifier: Apache-2.0 */

/* Threads of the engine and of lanes, and forks (thread.c). */

#ifndef IOUTIL_BASE_THREAD_H
#define IOUTIL_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* Start a thread that blocks all signals, because other threads handle them. The caller joins *thread. If `thread` is
   NULL, the new thread is detached. Returns 0 or an errno. */
int thread_start(pthread_t *thread, void *(*main)(void *argument), void *argument);

/* ---- forks ------------------------------------------------------------------------------------------------------ */

/* Do not use an object in a child that was forked after it was made: threads that the child does not have may hold its
   locks. */

/* Count forks from now on. */
void fork_watch(void);

/* Return a number that is different in a forked child. An object that keeps it knows whether it was made before the
   fork. */
uint32_t fork_generation(void);

#endif
