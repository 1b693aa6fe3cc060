/* SPDX-License-Identifier: Apache-2.0 */

/* Slabs: the memory of lanes (slabs.c), from which memory.c lends pieces. */

#ifndef IOUTIL_LANE_SLABS_H
#define IOUTIL_LANE_SLABS_H

#include <stddef.h>
#include <stdint.h>

#include "base/numbers.h"
#include "lane/device_limit.h"
#include "lane/shared.h"

/* Bytes of the largest piece of memory, and of a slab, from which pieces are cut: a huge page. */
#define LANE_PIECE (2 * MIB)

/* A piece of page-aligned memory. slab: NULL: memory of a long READ. */
struct memory {
    struct slab *slab;
    char *data;
    size_t size;
};

/* Map memory, of huge pages if the system has some. size: a multiple of LANE_PIECE. NULL: no memory. */
char *slab_map(size_t size);

/* Return the size of the smallest piece that has so many bytes, at most LANE_PIECE. */
size_t slab_piece(size_t size);

/* Give unused slabs back to the system. Called with the lock of lanes, or when no other thread uses them. */
void slab_free_kept(struct iou_lanes *lanes);

/* The lock of lanes is held from here on. A lane joins the memory of its device, and leaves it. NULL: no memory. */
struct device_slabs *slab_join(struct iou_lanes *lanes, uint64_t device);
void slab_part(struct iou_lanes *lanes, struct device_slabs *slabs);

struct device_limit *slab_limit(struct device_slabs *slabs);

/* Return how many further bytes of slabs a device may have. */
uint64_t slab_left(const struct iou_lanes *lanes, const struct device_slabs *slabs);

/* Take a piece of at least size bytes. -EAGAIN: there is none until another one is given back; -ENOMEM. */
int slab_take(struct iou_lanes *lanes, struct device_slabs *slabs, size_t size, struct memory **memory);
void slab_put(struct iou_lanes *lanes, struct memory *memory);

#endif
