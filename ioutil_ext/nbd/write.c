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
 * The sync after the last piece of a file covers all pieces. On a remote image FUA is part of each write, and covers
 * only that write.
 */
void write_piece(struct task *task, struct payload *payload, bool fua) {
    bool is_part = task->lane->handle->ops->remote;
    struct op op;
    answer_check(task->lane, &payload->answer);
    if (payload->answer.error)
        return;
    write_set(&op, payload, fua && is_part);
    payload->answer = answer_run(task, &op);
}
