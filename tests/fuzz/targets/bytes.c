/* SPDX-License-Identifier: Apache-2.0 */

#include "fuzz.h"

unsigned take_byte(struct input *input) {
    return input->at < input->end ? (unsigned char)*input->at++ : 0;
}

void bytes_add(struct bytes *bytes, const void *data, size_t length) {
    if (bytes->length + length >= bytes->size) {
        bytes->size = 2 * (bytes->length + length) + 1;
        bytes->data = realloc(bytes->data, bytes->size);
        CHECK(bytes->data);
    }
    if (length)
        memcpy(bytes->data + bytes->length, data, length);
    bytes->length += length;
}

void bytes_free(struct bytes *bytes) {
    free(bytes->data);
    *bytes = (struct bytes){0};
}

static void add_pattern(struct bytes *stream, size_t length) {
    char piece[4096];
    for (size_t i = 0; i < sizeof(piece); i++)
        piece[i] = (char)(i % 253);
    for (size_t added; length; length -= added) {
        added = min_u64(length, sizeof(piece));
        bytes_add(stream, piece, added);
    }
}

void expand(struct input input, struct bytes *stream, size_t most) {
    bytes_add(stream, NULL, 0); /* there is something, if only of no length */
    while (input.at < input.end && stream->length < most) {
        char c = (char)take_byte(&input);
        size_t length = 0;
        if (c == (char)0xff) {
            length = take_byte(&input) * 256;
            length = (length + take_byte(&input)) * 64;
        }
        if (length)
            add_pattern(stream, min_u64(length, most - stream->length));
        else
            bytes_add(stream, &c, 1);
    }
}
