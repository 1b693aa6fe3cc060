/* SPDX-License-Identifier: Apache-2.0 */

/* The memory of all decoders of the process (windows.c). Thread-safe. */

#ifndef IOUTIL_ZSTD_WINDOWS_H
#define IOUTIL_ZSTD_WINDOWS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/zstd.h"
#include "base/link.h"

/* What one decoder has of the memory. */
struct window {
    struct link link;
    uint64_t owner;
    uint64_t memory;    /* bytes; 0: none */
    uint64_t since;     /* ns, begin of the wait for its peer; 0: it does not wait */
    uint64_t waited;    /* ns of waits before that, since its last progress */
    uint64_t made;      /* bytes of content since then; for the thread of the decoder */
    atomic_bool wanted; /* it has to end */
};

/* Take memory. -EAGAIN: there is none now; decoders whose peers let them wait are asked to end for it. */
int window_take(struct window *window, uint64_t owner, uint64_t memory);

/* Give it back; does nothing if there is none. */
void window_put(struct window *window);

/* The decoder begins to wait for its peer, and goes on. */
void window_rest(struct window *window);
void window_go_on(struct window *window);

/* Wait until another decoder gives memory back, or ms have passed. */
void window_await(uint32_t ms);

/* Return the bytes that all decoders have. */
uint64_t window_total(void);

#endif
