/* SPDX-License-Identifier: Apache-2.0 */

/* Pieces of memory for the data of requests, by the quotas of users, and the queue of requests that wait (memory.c). */

#ifndef IOUTIL_QUOTA_MEMORY_H
#define IOUTIL_QUOTA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/numbers.h"
#include "base/waiter.h"
#include "quota/slabs.h"

/* Data has the same offset in a page of memory as in the image, so that direct I/O need not copy whole blocks.
   room_for() returns the bytes of memory that this takes. */
static inline char *place_in(const struct memory *memory, uint64_t offset) {
    return memory->data + offset % PAGE_UNIT;
}

static inline uint64_t room_for(uint64_t offset, uint64_t length) {
    return offset % PAGE_UNIT + length;
}

/* A request for memory. waits: it waits if there is none now. */
struct claimant {
    struct waiter waiter;
    struct memory_user *user;
    size_t size;
    bool waits;
    struct memory *memory;
    int error; /* 0; -ENOMEM: the system has no memory; -ECANCELED: the request ends */
};

/*
 * Take memory of at least size bytes, if the quotas of the user, its ticket and its device allow it. -EAGAIN: there is
 * none now; if it waits, it is in the queue. -ENOMEM: the system has none; -EOVERFLOW: size is larger than any piece
 * can be; -ECANCELED: the request ends.
 */
int memory_ask(struct claimant *claimant);

/* End the wait with error, unless the claimant was served meanwhile and is about to be woken. */
void memory_give_up(struct claimant *claimant, int error);

/* Give memory back. */
void memory_put(struct memory_user *user, struct memory *memory);

/* End the waits of requests that have to end. */
void memory_wake(struct memory_pool *pool);

#endif
