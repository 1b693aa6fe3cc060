/* SPDX-License-Identifier: Apache-2.0 */

/* Copies of pieces of tables that are written together (output.c). */

#ifndef IOUTIL_QCOW2_OUTPUT_H
#define IOUTIL_QCOW2_OUTPUT_H

#include "qcow2/qcow2.h"

struct piece {
    uint64_t offset, length; /* in the file */
    const void *source;
};

struct output {
    struct piece *pieces;
    uint64_t count, room, bytes;
    uint8_t *memory; /* the copies, in the order of the pieces */
};

int output_add(struct output *output, uint64_t offset, uint64_t length, const void *source);

/* Copy the sources, in the order of the file. */
int output_copy(struct output *output);

/* Write the copies; those that follow each other at once. */
int output_write(const struct output *output, struct qcow2 *q, struct op *op);
void output_free(struct output *output);

#endif
