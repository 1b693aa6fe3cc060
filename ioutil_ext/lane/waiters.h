/* SPDX-License-Identifier: Apache-2.0 */

/* Waiting for what lanes share (waiters.c). */

#ifndef IOUTIL_LANE_WAITERS_H
#define IOUTIL_LANE_WAITERS_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/link.h"

enum { WAITER_WAITS, WAITER_SERVED, WAITER_WOKEN };

/* A thread that waits for something, in a list that some lock is for. */
struct waiter {
    struct link link;
    atomic_int state;
    sem_t woken;
};

/* Begin to wait. The lock is held. */
void waiter_join(struct waiter *waiter, struct link *waiters);

/* It has what it waited for: move it to those who are to be woken. The lock is held. */
void waiter_serve(struct waiter *waiter, struct link *served);

/* Wake them, without the lock. */
void waiters_wake(struct link *served);

/* Sleep until it is woken: the waiter is no more. False: a time of now_ns() has come before, and it still waits. */
bool waiter_sleep(struct waiter *waiter, uint64_t until);

#endif
