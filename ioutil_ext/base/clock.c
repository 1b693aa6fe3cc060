/* SPDX-License-Identifier: Apache-2.0 */

#define _GNU_SOURCE
#include "base/clock.h"
#include "base/numbers.h"

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int ms_until(uint64_t deadline) {
    uint64_t now = now_ns();
    return now < deadline ? (int)min_u64((deadline - now) / 1000000 + 1, INT32_MAX) : 0;
}

void monotonic_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

void deadline_in(clockid_t clock, struct timespec *deadline, uint64_t ms) {
    clock_gettime(clock, deadline);
    uint64_t ns = (uint64_t)deadline->tv_nsec + ms % 1000 * 1000000u;
    deadline->tv_sec += (time_t)(ms / 1000 + ns / 1000000000u);
    deadline->tv_nsec = (long)(ns % 1000000000u);
}
