/* SPDX-License-Identifier: Apache-2.0 */

/* Bodies of requests (body.c); for the leader only. */

#ifndef IOUTIL_LANE_BODY_H
#define IOUTIL_LANE_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "lane/memory.h"

/* A body of which parts are received; or sent: then there is only the first line. */
struct body {
    uint64_t next, left;   /* of which no part was taken: where in the image, and how much */
    struct memory *memory; /* of the part that is received; NULL: it has none yet */
    struct memory *more;   /* of what does not fit in it; NULL: all does */
    uint64_t length, got;  /* of that part */
    bool slow;             /* less than the staging came in a moment lately; of the connection */
};

void body_begin(struct body *body, uint64_t offset, uint64_t length);

/*
 * Receive the next part, of at most so many bytes, with memory for it (two pieces, if it does not fit in one), or what
 * comes of it in a moment: whole pages, but at the end. -ENODATA: no more comes, -ECANCELED, -ENOMEM or the socket's
 * -errno: it has no memory, and what came of it is lost.
 */
int body_receive(struct iou_lane *lane, struct body *body, uint64_t most);

/* Receive what is there of it. Waits for nothing: -EAGAIN. */
int body_receive_ahead(struct iou_lane *lane, struct body *body, uint64_t most);

/* The part, which was received, is the caller's: take its memory, and move on. */
struct memory *body_take_memory(struct body *body);
struct memory *body_take_more(struct body *body);
void body_advance(struct body *body);

void body_drop_memory(struct iou_lane *lane, struct body *body);

#endif
