/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The head of a frame (RFC 8878 3.1.1.1). It is read before a decoder has memory, because it gives the size of this
 * memory. The library reads it once more, with the window found here as its limit.
 */

#include <string.h>

#include "content/zstd.h"

/* The bits of the descriptor. Bit 4 is unused, and means nothing; that a checksum follows (bit 2) is the library's. */
enum { DICTIONARY = 3, RESERVED = 8, SINGLE_SEGMENT = 32 };

static const unsigned char MAGIC[4] = {0x28, 0xb5, 0x2f, 0xfd};

/* The bytes of a dictionary's id and of the content's size, by their two bits of the descriptor. */
static const unsigned char DICTIONARY_SIZE[4] = {0, 1, 2, 4}, CONTENT_SIZE[4] = {0, 2, 4, 8};

/* A frame with a single segment has no window, and always the size of its content: of one byte at least. */
static size_t content_size(unsigned char descriptor) {
    size_t size = CONTENT_SIZE[descriptor >> 6];
    return size || !(descriptor & SINGLE_SEGMENT) ? size : 1;
}

size_t frame_head_size(const unsigned char *head) {
    unsigned char descriptor = head[4];
    if (memcmp(head, MAGIC, sizeof(MAGIC)) != 0)
        return 0;
    return FRAME_LEAST + !(descriptor & SINGLE_SEGMENT) + DICTIONARY_SIZE[descriptor & DICTIONARY] +
           content_size(descriptor);
}

/* Read a number of `size` bytes, the lowest first. One of two bytes is stored as 256 less. */
static uint64_t number(const unsigned char *at, size_t size) {
    uint64_t result = 0;
    for (size_t i = size; i > 0; i--)
        result = result << 8 | at[i - 1];
    return size == 2 ? result + 256 : result;
}

iou_zstd_refusal frame_read(const unsigned char *head, struct frame *frame) {
    const unsigned char *at = head + FRAME_LEAST;
    unsigned char descriptor = head[4];
    uint64_t dictionary = 0;
    *frame = (struct frame){0};
    if (descriptor & RESERVED)
        return IOU_ZSTD_HEAD;
    if (!(descriptor & SINGLE_SEGMENT)) {
        uint64_t base = UINT64_C(1) << (10 + (*at >> 3));
        frame->window = base + base / 8 * (*at & 7);
        at++;
    }
    for (size_t size = DICTIONARY_SIZE[descriptor & DICTIONARY]; size > 0; size--)
        dictionary |= *at++;
    if (dictionary)
        return IOU_ZSTD_HEAD;
    frame->has_content = content_size(descriptor) > 0;
    frame->content = number(at, content_size(descriptor));
    if (descriptor & SINGLE_SEGMENT)
        frame->window = frame->content;
    return frame->window > IOU_ZSTD_MAX_WINDOW ? IOU_ZSTD_WINDOW : 0;
}
