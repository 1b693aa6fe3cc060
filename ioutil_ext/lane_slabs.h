/* SPDX-License-Identifier: Apache-2.0 */

/* What the memory of lanes is cut from (lane_slabs.c), for who hands it out (lane_memory.c). */

#ifndef IOUTIL_LANE_SLABS_H
#define IOUTIL_LANE_SLABS_H

#include "lane.h"

/* Memory of huge pages, if the system has some; size: a multiple of LANE_PIECE. NULL: none. */
char *slab_map(size_t size);

/* How long the piece is that has so many bytes, at most LANE_PIECE. */
size_t slab_piece(size_t size);

/* Give what nobody uses back to the system. With the lock of lanes, or when nobody else has them any more. */
void slab_free_kept(struct iou_lanes *lanes);

/* Below, the lock of lanes is held. A lane comes to a device and leaves it. NULL: no memory. */
struct borrower *slab_join(struct iou_lanes *lanes, uint64_t device);
void slab_part(struct iou_lanes *lanes, struct borrower *borrower);

struct depth *slab_depth(struct borrower *borrower);

/* Bytes of slabs that a device may have besides those it has. */
uint64_t slab_left(const struct iou_lanes *lanes, const struct borrower *borrower);

/* Take a piece of at least size bytes. -EAGAIN: there is none before another one is given back; -ENOMEM. */
int slab_take(struct iou_lanes *lanes, struct borrower *borrower, size_t size, struct memory **memory);
void slab_put(struct iou_lanes *lanes, struct memory *memory);

#endif
