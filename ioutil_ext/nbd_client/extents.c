/* SPDX-License-Identifier: Apache-2.0 */

/* Extents as the server reports them, and the row of an image's operations. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "nbd_client/rounds.h"

/* ---- extents ---------------------------------------------------------------------------------------------------- */

/* Whether a bitmap is wanted that the server does not report: unknown changes must not look like none. */
static bool lacks_bitmap(const struct round *round, uint64_t available) {
    uint64_t asked = round->tells & ALL_BITMAPS;
    return round->op->tells ? asked & ~available : asked && !(asked & available);
}

static int is_unsound(struct round *round, const char *why) {
    struct client *client = round->client;
    pthread_mutex_lock(&client->lock);
    uint64_t failure = failure_add(client, IOU_NBD_UNSOUND, NULL, EPROTO, why, strlen(why));
    pthread_mutex_unlock(&client->lock);
    return round_fail(round, failure, EPROTO);
}

/* Request the status from `start` on, at least one extent, of whole blocks. Returns how many records, or -errno. */
static int64_t ask(struct round *round, uint64_t start, uint64_t end, iou_extent *extents, uint64_t max) {
    struct op *op = round->op;
    uint64_t size = op->handle->unit, first = round_down(start, size), last = round_up(end, size);
    uint64_t length = round_bare(round, first, last - first);
    struct nbd_request request = {.command = CMD_BLOCK_STATUS, .offset = first, .length = length};
    request.flags = op->buffer_size == sizeof(iou_extent) ? FLAG_REQ_ONE : 0;
    request.status =
        status_new(&round->contexts, round->tells, op->tells, first, extents, (uint32_t)min_u64(max, UINT32_MAX));
    if (!request.status)
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    int error = round_add(round, request);
    if (!error)
        error = round_run(round);
    int64_t count = error ? error : status_merge(request.status, start, min_u64(first + length, end), extents, max);
    free(request.status);
    return count == -EPROTO && !error ? is_unsound(round, "no status of the range in a context") : count;
}

/* Append records. The first one is merged into the last one before if their flags are equal. */
static void add(struct op *op, iou_extent *extents, uint64_t count) {
    iou_extent *last = op->result.count ? &extents[op->result.count - 1] : NULL, *more = &extents[op->result.count];
    op_advance(op, more[count - 1].end - op_position(op));
    if (last && last->flags == more->flags) {
        last->end = more->end;
        for (uint64_t i = 1; i < count; i++)
            more[i - 1] = more[i];
        count--;
    }
    op->result.count += (uint32_t)count;
}

static int nbd_extents(struct op *op) {
    struct round round;
    iou_extent *extents = op->buffer;
    uint64_t most = op->buffer_size / sizeof(*extents);
    int error = round_enter(&round, op);
    if (error)
        return error;
    uint64_t end = min_u64(op->offset + op->length, round.client->image.size), start;
    uint64_t told = contexts_tell(&round.contexts, round.tells);
    if (lacks_bitmap(&round, told))
        return is_unsound(&round, "it does not tell a bitmap any more");
    while ((start = op_position(op)) < end && op->result.count < most) {
        uint64_t left = most - op->result.count;
        int64_t count = 1;
        if (op_canceled(op))
            return op_fail(op, IOU_SYS_NONE, ECANCELED);
        if (told)
            count = ask(&round, start, end, extents + op->result.count, left);
        else
            extents[op->result.count] = (iou_extent){.end = end};
        if (count < 0)
            return (int)count;
        add(op, extents, (uint64_t)count);
    }
    return 0;
}

/* ---- the row ---------------------------------------------------------------------------------------------------- */

/* Make sure that there is a session. The size does not change. */
static int look_at_server(struct op *op) {
    struct round round;
    op->result.size = UINT64_MAX; /* servers do not report their free space */
    return round_enter(&round, op);
}

/* The change itself has put its bytes on stable storage. */
static int is_synced(struct op *op) {
    (void)op;
    return 0;
}

static void wake_client(const iou_handle *handle) {
    iou_nbd_client_interrupt((iou_handle *)handle);
}

/* Operations sleep until the server has replied. */
static bool is_server_prompt(const struct op *op) {
    (void)op;
    return true;
}

const struct image_ops NBD_IMAGE = {
    .remote = true,
    .is_prompt = is_server_prompt,
    .claim = nbd_claim,
    .run =
        {
            [IOU_STAT] = look_at_server,
            [IOU_READ] = nbd_read,
            [IOU_WRITE] = nbd_write,
            [IOU_ZERO] = nbd_zero,
            [IOU_TRIM] = nbd_trim,
            [IOU_FLUSH] = nbd_sync,
            [IOU_EXTENTS] = nbd_extents,
        },
    .sync = is_synced,
    .wake = wake_client,
    .free = client_free,
};
