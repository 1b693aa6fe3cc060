/* SPDX-License-Identifier: Apache-2.0 */

/* Zeroing and trimming on an NBD server: when zeroing is sure to be fast, and the requests. */

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "nbd_client/rounds.h"

/* The source of zeros that are written where the server cannot zero. It is never written to, so it stays one shared
   page of the kernel. It is not const, so that it is in .bss. */
static char zeros[IOU_NBD_PIECE] __attribute__((aligned(PAGE_UNIT)));

/*
 * Nothing is sent if zeroing is not sure to be fast. A server that refuses SHOULD NOT change anything (proto.md,
 * NBD_CMD_FLAG_FAST_ZERO), and may have done so. qemu-nbd 7.2 zeroes the whole clusters of a range before it refuses a
 * part of one; on ext2 it punches a hole in a raw file before it finds out that it cannot allocate.
 */
static bool is_fast(const struct round *round) {
    const struct op *op = round->op;
    const struct client *client = round->client;
    uint64_t unit = max_u64(client->zero_unit, op->handle->unit), end = op->offset + op->length; /* powers of two */
    if (!client->zero_unit || (op->flags & IOU_ALLOCATE && !client->allocation))
        return false;
    bool whole = is_aligned(op->offset, unit) && (is_aligned(end, unit) || end == client->image.size);
    return round->agreed.flags & NBD_CAN_ZERO_FAST && whole && round_bare(round, op->offset, op->length) == op->length;
}

/* A zero that is not fast is refused at once: it does not wait for other changes. */
int nbd_claim(struct op *op) {
    struct round round;
    if (op->kind == IOU_ZERO && op->flags & IOU_FAST_ONLY) {
        round_look(&round, op);
        if (!is_fast(&round))
            return 0;
    }
    return claim_operation(op);
}

static int write_zeros(struct round *round, const struct blocks *blocks) {
    uint64_t together = MOST_TOGETHER / 4 * round->client->image.pieces.piece;
    int error = 0;
    for (uint64_t start = blocks->start, stop; !error && start < blocks->end; start = stop) {
        stop = min_u64(start + together, blocks->end);
        if (op_canceled(round->op))
            return op_fail(round->op, IOU_SYS_NONE, ECANCELED);
        error = round_add_data(round, CMD_WRITE, start, stop, zeros, true);
        if (!error)
            error = round_run(round);
    }
    return error;
}

static int zero_blocks(struct round *round, struct blocks *blocks) {
    struct op *op = round->op;
    bool can = round->agreed.flags & NBD_CAN_ZERO, some = blocks->start < blocks->end;
    int error = blocks_patch(blocks, round, NULL);
    if (!error)
        error = round_run(round);
    if (!error && some)
        error = can ? round_change(round, CMD_WRITE_ZEROES, blocks->start, blocks->end) : write_zeros(round, blocks);
    op->result.method = some && can ? IOU_METHOD_REMOTE : op->length ? IOU_METHOD_WRITE : IOU_METHOD_NONE;
    return error;
}

int nbd_zero(struct op *op) {
    struct round round;
    struct blocks blocks;
    int error = round_enter(&round, op);
    if (!error && op->flags & IOU_FAST_ONLY && !(op->claimed && is_fast(&round)))
        error = op_fail(op, IOU_SYS_NONE, ENOTSUP);
    if (!error)
        error = blocks_cut_range(&blocks, op);
    if (error)
        return error;
    nbd_begin_change(&round);
    if (op->flags & IOU_ALLOCATE)
        round.flags |= FLAG_NO_HOLE;
    if (op->flags & IOU_FAST_ONLY)
        round.flags |= FLAG_FAST_ZERO;
    error = zero_blocks(&round, &blocks);
    free(blocks.memory);
    return nbd_changed(&round, error);
}

int nbd_trim(struct op *op) {
    struct round round;
    uint64_t size = op->handle->unit;
    int error = round_enter(&round, op);
    if (error)
        return error;
    nbd_begin_change(&round);
    if (round.agreed.flags & NBD_CAN_TRIM)
        error = round_change(&round, CMD_TRIM, round_up(op->offset, size), round_down(op->offset + op->length, size));
    if (!error)
        op_advance(op, op->length - op->result.done); /* parts of blocks stay */
    return nbd_changed(&round, error);
}
