/* SPDX-License-Identifier: Apache-2.0 */

/* The head of a frame of zstd (frame.c). */

#ifndef IOUTIL_ZSTD_FRAME_H
#define IOUTIL_ZSTD_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/zstd.h"

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

#endif
