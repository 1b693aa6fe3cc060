/* SPDX-License-Identifier: Apache-2.0 */

/* Sets of bytes, as sorted ranges that neither overlap nor touch (ranges.c). Not thread-safe. */

#ifndef IOUTIL_DURABLE_RANGES_H
#define IOUTIL_DURABLE_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "api/ioutil.h"
#include "durable/blocks.h"

void ranges_free(struct ranges *set);

/* Add, or take away, the bytes from start up to, not including, end. */
void ranges_add(struct ranges *set, uint64_t start, uint64_t end);
void ranges_remove(struct ranges *set, uint64_t start, uint64_t end);

/* Add all bytes of another set. */
void ranges_join(struct ranges *set, const struct ranges *other);

/* Move all ranges to an empty set. */
void ranges_move(struct ranges *from, struct ranges *to);

/* Move the bytes from start to end to an empty set. */
void ranges_cut(struct ranges *from, uint64_t start, uint64_t end, struct ranges *to);

bool ranges_overlap(const struct ranges *set, uint64_t start, uint64_t end);

#endif
