/* SPDX-License-Identifier: Apache-2.0 */

/* Clocks and deadlines. */

#ifndef IOUTIL_BASE_CLOCK_H
#define IOUTIL_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* Return the time of CLOCK_MONOTONIC, in ns. */
uint64_t now_ns(void);

/* Return the ms after which a time of now_ns() has passed, or 0 if it has passed already. */
int ms_until(uint64_t deadline);

/* Make a condition variable on CLOCK_MONOTONIC. Get the time of a clock in `ms` milliseconds. */
void monotonic_cond_init(pthread_cond_t *cond);
void deadline_in(clockid_t clock, struct timespec *deadline, uint64_t ms);

#endif
