/* SPDX-License-Identifier: Apache-2.0 */

/* What the memory of lanes is cut from (slabs.c), for who hands it out (memory.c). */

#ifndef IOUTIL_LANE_SLABS_H
#define IOUTIL_LANE_SLABS_H

#include <stddef.h>
#include <stdint.h>

#include "base/numbers.h"
#include "lane/device_limit.h"
#include "lane/shared.h"

/* The largest piece of memory, and the slab that a piece is cut from: a huge page. */
#define LANE_PIECE (2 * MIB)

/* Page-aligned memory. slab: NULL: a long one. */
struct memory {
    struct slab *slab;
    char *data;
    size_t size;
};

/* Memory of huge pages, if the system has some; size: a multiple of LANE_PIECE. NULL: none. */
char *slab_map(size_t size);

/* How long the piece is that has so many bytes, at most LANE_PIECE. */
size_t slab_piece(size_t size);

/* Give what nobody uses back to the system. With the lock of lanes, or when nobody else has them any more. */
void slab_free_kept(struct iou_lanes *lanes);

/* Below, the lock of lanes is held. A lane comes to a device and leaves it. NULL: no memory. */
struct device_slabs *slab_join(struct iou_lanes *lanes, uint64_t device);
void slab_part(struct iou_lanes *lanes, struct device_slabs *slabs);

struct device_limit *slab_limit(struct device_slabs *slabs);

/* Bytes of slabs that a device may have besides those it has. */
uint64_t slab_left(const struct iou_lanes *lanes, const struct device_slabs *slabs);

/* Take a piece of at least size bytes. -EAGAIN: there is none before another one is given back; -ENOMEM. */
int slab_take(struct iou_lanes *lanes, struct device_slabs *slabs, size_t size, struct memory **memory);
void slab_put(struct iou_lanes *lanes, struct memory *memory);

#endif
