/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A loop: a thread that runs fibers, and waits for all of them in one place (loop.c). Fibers sleep until they are
 * woken, until a descriptor is ready, or until a time.
 */

#ifndef IOUTIL_BASE_LOOP_H
#define IOUTIL_BASE_LOOP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fiber.h"

#define FOR_EVER UINT64_MAX

/* Most fibers that do something in a round: a lane has as many requests at a time (lane/tasks.c). Each may have begun a
   call (aio.c). */
#define LOOP_FIBERS 64u

/* Calls of fibers that are begun together before the loop sleeps, and whose ends make its eventfd readable (aio.c). */
struct batch {
    void (*begin)(struct batch *batch); /* begin the calls of a round */
    void (*reap)(struct batch *batch);  /* wake the fibers whose calls have ended */
    void (*free)(struct batch *batch);  /* the loop has ended, and no call is under way */
};

struct loop {
    int event_fd; /* readable: a wake-up by another thread, or completed I/O */
    uint32_t count;
    struct link ready;    /* fibers that go on, in this order */
    struct link yielded;  /* fibers that go on in the next round */
    struct link sleeping; /* fibers whose wait has a deadline, or is for a descriptor */
    struct batch *batch;  /* NULL: no fiber has begun a call */
    bool refused;         /* the kernel has refused such calls */

    /* Called in the loop's thread: before it sleeps, when it has run all fibers that were ready; and after
       loop_interrupt(). They may wake fibers. NULL: nothing. */
    void (*before_sleep)(struct loop *loop);
    void (*interrupted)(struct loop *loop);

    pthread_mutex_t lock; /* a leaf; guards all below */
    struct link woken;    /* fibers that other threads have woken */
    bool asleep, interrupts;
};

/* -errno */
int loop_init(struct loop *loop);
void loop_destroy(struct loop *loop);

/* Start a fiber of the loop: by its thread, or before loop_run(). -ENOMEM. */
int loop_start(struct loop *loop, struct fiber *fiber, void (*main)(struct fiber *fiber));

/* Run fibers until all have ended. Their memory is free then; fiber_free() is called here. */
void loop_run(struct loop *loop);

/* End the waits for descriptors of all fibers, and call interrupted(). Any thread. */
void loop_interrupt(struct loop *loop);

/* ---- for a fiber ------------------------------------------------------------------------------------------------ */

/* Go on in the next round of the loop, after the other fibers that are ready. */
void fiber_yield(void);

/* Sleep until fiber_wake(), which may have come before. False: not until then, a time of now_ns(). */
bool fiber_sleep(uint64_t until);

/*
 * End the sleep of a fiber, now or when it begins. Any thread. The fiber is not used after it goes on. Each call ends
 * one sleep, so a sleep that ended at its deadline must be followed by another one, if a wake-up is still to come.
 */
void fiber_wake(struct fiber *fiber);

/* End the fiber_await() of another fiber, if it is in one. The loop's thread. */
void fiber_disturb(struct fiber *fiber);

/* Sleep until one of poll(2)'s events of a descriptor. 0: not until then, or the wait was
   ended by loop_interrupt() or fiber_disturb(). */
short fiber_await(int fd, short events, uint64_t until);

#endif
