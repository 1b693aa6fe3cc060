/* SPDX-License-Identifier: Apache-2.0 */

/* Decoding of zstd: the memory of all decoders of the process, thread-safe (windows.c), heads of frames (frame.c), and
   clusters of images (decoder.c). api/zstd.h has the decoding of bodies. */

#ifndef IOUTIL_CONTENT_ZSTD_H
#define IOUTIL_CONTENT_ZSTD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/zstd.h"
#include "base/link.h"

/* The memory that one decoder has. */
struct window {
    struct link link;
    uint64_t owner;
    uint64_t memory;    /* bytes, 0 before window_take() */
    uint64_t since;     /* when its wait for its peer began, in ns, or 0 if it does not wait */
    uint64_t waited;    /* ns of earlier waits since its last progress */
    uint64_t made;      /* bytes of content since its last progress; for the decoder's thread */
    atomic_bool wanted; /* it has to end */
};

/* Take memory. Returns 0, or -EAGAIN if there is none now. Then decoders that wait for their peers are asked to end. */
int window_take(struct window *window, uint64_t owner, uint64_t memory);

/* Give the memory back. Does nothing if there is none. */
void window_put(struct window *window);

/* Note that the decoder begins to wait for its peer, or that it continues. */
void window_rest(struct window *window);
void window_go_on(struct window *window);

/* Wait until another decoder gives memory back, at most `ms`. */
void window_await(uint32_t ms);

/* Return how many bytes all decoders have. */
uint64_t window_total(void);

/* ---- frame.c ---------------------------------------------------------------------------------------------------- */

/* Most bytes of a head: magic number, descriptor, window, dictionary and size of the content. */
#define FRAME_MAX_HEAD 18u

/* The first bytes of a head that have its length: magic number and descriptor. */
#define FRAME_LEAST 5u

struct frame {
    uint64_t window;
    uint64_t content; /* bytes, if it is known */
    bool has_content;
};

/* Return the length of a head from its first FRAME_LEAST bytes, or 0 if it is not the head of a frame. */
size_t frame_head_size(const unsigned char *head);

/* Read a whole head. Returns 0, or the reason why it is refused. */
iou_zstd_refusal frame_read(const unsigned char *head, struct frame *frame);

/* ---- decoder.c -------------------------------------------------------------------------------------------------- */

/* Decode frames until there are exactly `size` bytes. The data after that is ignored. Returns 0, -EIO if the data does
   not decode to that many bytes, or -ENOMEM. */
int zstd_decode_cluster(void *to, size_t size, const void *from, size_t length);

#endif
