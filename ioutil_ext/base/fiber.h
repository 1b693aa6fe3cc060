/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Fibers: functions with a stack of their own that a thread runs in turns (fiber.c). Code in a fiber is written as if
 * it had a thread; where a thread would sleep, it switches back to the thread. loop.h describes when it continues.
 */

#ifndef IOUTIL_BASE_FIBER_H
#define IOUTIL_BASE_FIBER_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/link.h"

struct loop;

struct fiber {
    struct link link;  /* in a list of its loop: ready, or sleeping with a deadline */
    struct link woken; /* in loop->woken: another thread has woken it */
    struct loop *loop;
    void (*main)(struct fiber *fiber);
    void *data; /* for its user */
    char *stack;
    bool begun, ended;
    bool sleeps, token; /* it waits for a wake-up; a wake-up has arrived before it slept */
    bool timed_out;
    uint64_t until; /* ns: the deadline of its wait */
    int fd;         /* the descriptor that it waits for, or -1 */
    short events, revents;
    jmp_buf context;
    void *sanitizer; /* what a sanitizer keeps for the fiber */
};

/* Make a fiber that runs main(fiber) at the first fiber_enter(). Returns 0 or -ENOMEM. */
int fiber_make(struct fiber *fiber, void (*main)(struct fiber *fiber));

/* Free the stack of a fiber that has ended, or was never entered. */
void fiber_free(struct fiber *fiber);

/* Run a fiber in this thread until it leaves or ends. Only the thread that has entered it first may enter it again. */
void fiber_enter(struct fiber *fiber);

/* Switch back to the thread, and return at the next fiber_enter(). Call this in a fiber that holds no mutex. */
void fiber_leave(void);

/* Return the fiber that this thread runs, or NULL. */
struct fiber *fiber_current(void);

#endif
