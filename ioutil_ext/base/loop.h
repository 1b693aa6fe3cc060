/* SPDX-License-Identifier: Apache-2.0 */

/* A loop: a thread that runs fibers, and waits in one place for all of them (loop.c). A fiber sleeps until another one
   or a thread wakes it, until a descriptor is ready, or until a deadline. */

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

/* Calls of fibers that are begun together before the loop sleeps. When one has ended, the loop's eventfd is readable
   (aio.c). */
struct batch {
    void (*begin)(struct batch *batch); /* begin the calls of a round */
    void (*reap)(struct batch *batch);  /* wake the fibers whose calls have ended */
    void (*free)(struct batch *batch);  /* the loop has ended, and no call is under way */
};

struct loop {
    int event_fd; /* readable after a wake-up by another thread, or completed I/O */
    uint32_t count;
    struct link ready;    /* fibers that continue, in this order */
    struct link yielded;  /* fibers that continue in the next round */
    struct link sleeping; /* fibers whose wait has a deadline, or is for a descriptor */
    struct batch *batch;  /* or NULL before a fiber has begun a call */
    bool refused;         /* the kernel has refused such calls */

    /* Called in the loop's thread: before_sleep() when it has run all fibers that were ready, interrupted() after
       loop_interrupt(). They may wake fibers. Either may be NULL. */
    void (*before_sleep)(struct loop *loop);
    void (*interrupted)(struct loop *loop);

    pthread_mutex_t lock; /* a leaf; guards all below */
    struct link woken;    /* fibers that other threads have woken */
    bool asleep, interrupts;
};

/* Return 0 or -errno. */
int loop_init(struct loop *loop);
void loop_destroy(struct loop *loop);

/* Start a fiber. Call this in the loop's thread, or before loop_run(). Returns 0 or -ENOMEM. */
int loop_start(struct loop *loop, struct fiber *fiber, void (*main)(struct fiber *fiber));

/* Run fibers until all have ended. This calls fiber_free() for each that has ended; its memory is free then. */
void loop_run(struct loop *loop);

/* End the waits of all fibers for descriptors, and call interrupted(). Any thread may call this. */
void loop_interrupt(struct loop *loop);

/* ---- for a fiber ------------------------------------------------------------------------------------------------ */

/* Let the other fibers that are ready run first, and continue in the next round of the loop. */
void fiber_yield(void);

/* Sleep until fiber_wake(), which may have been called before. Returns false if it was not called until `until`, a time
   of now_ns(). */
bool fiber_sleep(uint64_t until);

/*
 * End the sleep of a fiber, now or when it begins. Any thread may call this. After the fiber continues, this does not
 * use it any more. Each call ends one sleep. So if a sleep has ended at its deadline and the wake-up will still come,
 * sleep once more.
 */
void fiber_wake(struct fiber *fiber);

/* End the fiber_await() of another fiber, if it is in one. Call this in the loop's thread. */
void fiber_disturb(struct fiber *fiber);

/* Sleep until a descriptor has one of these events of poll(2), and return the events. Returns 0 at the deadline, or if
   loop_interrupt() or fiber_disturb() has ended the wait. */
short fiber_await(int fd, short events, uint64_t until);

#endif
