/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Fibers: functions with a stack of their own that a thread runs in turns (fiber.c). Code in a fiber is written as if
 * it had a thread; where a thread would sleep, it switches back to the thread. loop.h says when it goes on.
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
    void *data; /* of its user */
    char *stack;
    bool begun, ended;
    bool sleeps, token; /* it waits for a wake-up; one has come before it sleeps */
    bool timed_out;
    uint64_t until; /* ns: the deadline of its wait */
    int fd;         /* that it waits for; -1: none */
    short events, revents;
    jmp_buf context;
    void *sanitizer; /* what a sanitizer keeps for the fiber */
};

/* Make a fiber that runs main(fiber) at the first fiber_enter(). -ENOMEM. */
int fiber_make(struct fiber *fiber, void (*main)(struct fiber *fiber));

/* Free the stack of a fiber that has ended, or was never entered. */
void fiber_free(struct fiber *fiber);

/* Run a fiber in this thread until it leaves or ends. A fiber stays in the thread that has entered it first. */
void fiber_enter(struct fiber *fiber);

/* Switch back to the thread. Returns at the next fiber_enter(). Called in a fiber, which holds no mutex. */
void fiber_leave(void);

/* Return the fiber that this thread runs. NULL: none. */
struct fiber *fiber_current(void);

#endif
