/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/layer.h"

int output_add(struct output *output, uint64_t offset, uint64_t length, const void *source) {
    if (output->count == output->room) {
        uint64_t room = max_u64(64, 2 * output->room);
        struct piece *pieces = realloc(output->pieces, room * sizeof(*pieces));
        if (!pieces)
            return -ENOMEM;
        output->pieces = pieces;
        output->room = room;
    }
    output->pieces[output->count++] = (struct piece){offset, length, source};
    output->bytes += length;
    return 0;
}

static int compare_output(const void *left, const void *right) {
    const struct piece *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

int output_copy(struct output *output) {
    void *memory;
    if (!output->count)
        return 0;
    if (posix_memalign(&memory, PAGE_UNIT, output->bytes))
        return -ENOMEM;
    output->memory = memory;
    qsort(output->pieces, output->count, sizeof(*output->pieces), compare_output);
    uint8_t *to = memory;
    for (const struct piece *piece = output->pieces; piece < output->pieces + output->count; to += piece++->length)
        memcpy(to, piece->source, piece->length);
    return 0;
}

int output_write(const struct output *output, struct qcow2 *q, struct op *op) {
    const uint8_t *from = output->memory;
    for (uint64_t i = 0, next; i < output->count; i = next) {
        uint64_t length = output->pieces[i].length, offset = output->pieces[i].offset;
        for (next = i + 1; next < output->count && output->pieces[next].offset == offset + length; next++)
            length += output->pieces[next].length;
        int error = layer_write(op, q->file, from, offset, length);
        if (error)
            return error;
        from += length;
    }
    return 0;
}

void output_free(struct output *output) {
    free(output->pieces);
    free(output->memory);
    *output = (struct output){0};
}
