/* SPDX-License-Identifier: Apache-2.0 */

/* Decoding zstd: the memory of all decoders of the process, thread-safe (windows.c), heads of frames (frame.c), and
   clusters of images (decoder.c). Bodies are in api/zstd.h. */

#ifndef IOUTIL_CONTENT_ZSTD_H
#define IOUTIL_CONTENT_ZSTD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
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

/* ---- frame.c ---------------------------------------------------------------------------------------------------- */

/* Most bytes of a head: magic number, descriptor, window, dictionary and size of the content. */
#define FRAME_MAX_HEAD 18u

/* Fewest bytes that tell how long a head is: magic number and descriptor. */
#define FRAME_LEAST 5u

struct frame {
    uint64_t window;
    uint64_t content; /* bytes, if it is known */
    bool has_content;
};

/* Return the length of the head whose first bytes, at least FRAME_LEAST, these are. 0: it is no frame. */
size_t frame_head_size(const unsigned char *head);

/* Read a whole head. Returns 0, or the reason why it is refused. */
iou_zstd_refusal frame_read(const unsigned char *head, struct frame *frame);

/* ---- decoder.c -------------------------------------------------------------------------------------------------- */

/* Decode frames until exactly `size` bytes have come; what follows is not looked at. -EIO: it does not decode to so
   many; -ENOMEM. */
int zstd_decode_cluster(void *to, size_t size, const void *from, size_t length);

#endif
