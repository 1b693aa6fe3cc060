/* SPDX-License-Identifier: Apache-2.0 */

/* Times, and waiting until one. */

#ifndef IOUTIL_BASE_CLOCK_H
#define IOUTIL_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* ns, CLOCK_MONOTONIC. */
uint64_t now_ns(void);

/* Return the ms until a time of now_ns(), such that it has passed after them; 0: it has passed. */
int ms_until(uint64_t deadline);

/* A condition variable on CLOCK_MONOTONIC, and the time of a clock in so many ms. */
void monotonic_cond_init(pthread_cond_t *cond);
void deadline_in(clockid_t clock, struct timespec *deadline, uint64_t ms);

#endif
