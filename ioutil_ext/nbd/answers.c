/* SPDX-License-Identifier: Apache-2.0 */

/* The answers to requests, from the results of their operations; the pieces of a WRITE. */

#include <errno.h>
#include <string.h>

#include "lane/lane.h"
#include "nbd/nbd.h"

const char *iou_nbd_text(uint32_t reason) {
    static const char *const TEXTS[] = {
        [IOU_NBD_FAILED] = "the server failed to perform the operation",
        [IOU_NBD_ENDED] = "the transfer has ended",
        [IOU_NBD_NOT_FAST] = "the storage has no fast way to zero this",
        [IOU_NBD_OUTSIDE] = "the range is not inside the image",
        [IOU_NBD_TOO_LONG] = "there is no memory for so long a range",
        [IOU_NBD_NO_MEMORY] = "there is no memory for the request now",
    };
    return reason < LENGTH(TEXTS) ? TEXTS[reason] : NULL;
}

/* Return the answer after the end of the transfer, and refuse further requests, so that the connection ends. The client
   cannot distinguish an expired ticket from a cancelled one. */
static struct answer answer_ended(struct iou_lane *lane) {
    lane->state.refusing = true;
    return (struct answer){NBD_ESHUTDOWN, iou_nbd_text(IOU_NBD_ENDED)};
}

void answer_check(struct iou_lane *lane, struct answer *answer) {
    if (!answer->error && lane_refuses(lane))
        *answer = answer_ended(lane);
}

struct answer answer_of(struct iou_lane *lane, const struct op *op) {
    const struct nbd *nbd = nbd_of(lane);
    uint32_t error = (uint32_t)op->result.error;
    bool refused = error == ENOTSUP && op->flags & IOU_FAST_ONLY &&
                   op->result.syscall != IOU_SYS_SERVER; /* the client has set FAST_ZERO: no fault of the storage */
    lane_renew(lane);
    counts_report(lane, op, error == ECANCELED || refused ? 0 : (int)error);
    if (error == 0)
        return (struct answer){0, NULL};
    if (error == ECANCELED)
        return answer_ended(lane);
    if (refused)
        return (struct answer){NBD_ENOTSUP, iou_nbd_text(IOU_NBD_NOT_FAST)};
    if (error == ENODATA && op->result.syscall == IOU_SYS_NONE) /* another process has made the image shorter */
        return (struct answer){op->kind == IOU_WRITE || op->kind == IOU_ZERO ? NBD_ENOSPC : NBD_EINVAL,
                               iou_nbd_text(IOU_NBD_OUTSIDE)};
    uint32_t known = error < nbd->errors_count ? nbd->errors[error] : 0;
    return (struct answer){known ? known : NBD_EIO, iou_nbd_text(IOU_NBD_FAILED)};
}

struct answer answer_run(struct task *task, struct op *op) {
    operation_run(task, op);
    return answer_of(task->lane, op);
}

struct answer answer_no_memory(struct iou_lane *lane, int error) {
    if (error == -ECANCELED)
        return answer_ended(lane);
    if (error == -EOVERFLOW)
        return (struct answer){NBD_EOVERFLOW, iou_nbd_text(IOU_NBD_TOO_LONG)};
    return (struct answer){NBD_ENOMEM, iou_nbd_text(IOU_NBD_NO_MEMORY)};
}

struct answer answer_fill(struct task *task, char *data, uint64_t offset, uint64_t length) {
    uint64_t size = task->lane->handle->image->size;
    uint64_t inside = offset < size ? min_u64(length, size - offset) : 0;
    struct op op = {.kind = IOU_READ, .offset = offset, .length = inside, .buffer = data};
    memset(data + inside, 0, length - inside);
    return inside ? answer_run(task, &op) : (struct answer){0, NULL};
}

void request_end(struct iou_lane *lane) {
    if (atomic_fetch_sub(&lane->state.running, 1) == 1 && lane->state.refusing)
        lane_wake(lane);
}

/* ---- WRITE ------------------------------------------------------------------------------------------------------ */

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
