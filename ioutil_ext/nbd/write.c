/* SPDX-License-Identifier: Apache-2.0 */

/* Writing the pieces of a WRITE's payload: receive.c writes all but the last one, requests.c the last one. */

#include "nbd/nbd.h"

void write_set(struct op *op, const struct payload *payload, bool fua) {
    *op = (struct op){
        .kind = IOU_WRITE,
        .flags = fua ? IOU_FUA : 0,
        .offset = payload->offset,
        .length = payload->length,
        .buffer = payload->data,
    };
}

/*
 * The sync after the last piece of a file covers all pieces. A remote image has no sync: FUA is part of each write
 * there, and covers only that write.
 */
void write_piece(struct lane_thread *thread, struct payload *payload, bool fua) {
    bool is_part = !thread->lane->handle->ops->sync;
    struct op op;
    answer_check(thread->lane, &payload->answer);
    if (payload->answer.error)
        return;
    write_set(&op, payload, fua && is_part);
    payload->answer = answer_run(thread, &op);
}
