/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The operations of an image that an NBD server has: reading, writing and flushing, in whole blocks where the server
 * takes no others. A block of which a change has a part is read, changed and written back, under the claim of the
 * operation.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "nbd_client/rounds.h"

/* ---- blocks ----------------------------------------------------------------------------------------------------- */

/* Add an edge: the part of a block that a range has. */
static void add_edge(struct blocks *blocks, uint64_t block, uint64_t start, uint64_t end) {
    if (end - start < blocks->size)
        blocks->edges[blocks->count] = (struct edge){block, start, end, blocks->memory + blocks->count * blocks->size};
    blocks->count += end - start < blocks->size;
}

int blocks_cut_range(struct blocks *blocks, struct op *op) {
    uint64_t size = op->handle->unit, start = op->offset, end = start + op->length;
    uint64_t first = round_down(start, size), last = op->length ? round_down(end - 1, size) : first;
    *blocks = (struct blocks){.size = size, .start = round_up(start, size), .end = round_down(end, size)};
    if (is_aligned(start | end, size))
        return 0;
    blocks->memory = malloc(2 * size);
    if (!blocks->memory)
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    if (op->length)
        add_edge(blocks, first, start, min_u64(end, first + size));
    if (last != first)
        add_edge(blocks, last, last, end);
    return 0;
}

/* Add requests that read the blocks at the edges. counts: their parts are progress. */
static int blocks_read(struct blocks *blocks, struct round *round, bool counts) {
    int error = 0;
    for (unsigned i = 0; !error && i < blocks->count; i++) {
        const struct edge *edge = &blocks->edges[i];
        error = round_add(round, (struct nbd_request){.command = CMD_READ,
                                                      .offset = edge->block,
                                                      .length = blocks->size,
                                                      .memory = edge->memory,
                                                      .counts = counts ? edge->end - edge->start : 0});
    }
    return error;
}

int blocks_patch(struct blocks *blocks, struct round *round, const char *data) {
    int error = blocks_read(blocks, round, false);
    if (!error)
        error = round_run(round);
    for (unsigned i = 0; !error && i < blocks->count; i++) {
        const struct edge *edge = &blocks->edges[i];
        char *inside = edge->memory + (edge->start - edge->block);
        uint64_t length = edge->end - edge->start;
        if (data)
            memcpy(inside, data + (edge->start - round->op->offset), length);
        else
            memset(inside, 0, length);
        error = round_add(round, (struct nbd_request){.command = CMD_WRITE,
                                                      .flags = round->flags & FLAG_FUA,
                                                      .offset = edge->block,
                                                      .length = blocks->size,
                                                      .memory = edge->memory,
                                                      .counts = length});
    }
    return error;
}

/* ---- flushing --------------------------------------------------------------------------------------------------- */

/*
 * Flushing. After a failure each flush fails, because data of other writes may be lost. Each flush also fails after a
 * session that has ended with changes that no flush had covered, or that were not answered. A failure is kept when its
 * reply arrives, before any later reply is read.
 */

/* Fail if a flush has failed. error: of the operation so far, which comes first. */
static int check_flushes(struct round *round, int error) {
    pthread_mutex_lock(&round->client->lock);
    iou_nbd_failure failure = round->client->flush_failure;
    pthread_mutex_unlock(&round->client->lock);
    round->op->flushes_fail = failure.number;
    return error || !failure.number ? error : round_fail(round, failure.number, failure.error);
}

static int fail_without_flush(struct round *round) {
    struct client *client = round->client;
    pthread_mutex_lock(&client->lock);
    uint64_t failure = failure_add(client, IOU_NBD_NO_FLUSH, NULL, EOPNOTSUPP, "", 0);
    pthread_mutex_unlock(&client->lock);
    return round_fail(round, failure, EOPNOTSUPP);
}

/* Send a flush on each connection: it covers what was answered on that one, at least. */
static int flush_all(struct round *round, uint32_t connections) {
    int error = 0;
    for (uint32_t i = 0; !error && i < connections; i++)
        error = round_add(round, (struct nbd_request){.command = CMD_FLUSH});
    return error ? error : round_run(round);
}

/* Checks for failures before and after its requests, because the server may report a failure in the reply to the flush
   of another operation. */
int nbd_sync(struct op *op) {
    struct round round;
    int error = round_enter(&round, op);
    if (error)
        return error;
    error = check_flushes(&round, 0);
    if (!error && !(round.agreed.flags & NBD_CAN_FLUSH))
        error = fail_without_flush(&round);
    if (error)
        return error;
    struct client *client = round.client;
    pthread_mutex_lock(&client->lock);
    uint64_t changed = client->session.changed, session = client->session.number;
    uint32_t connections = client->session.count;
    pthread_mutex_unlock(&client->lock);
    error = flush_all(&round, connections);
    pthread_mutex_lock(&client->lock);
    if (!error && client->session.number == session)
        client->session.flushed = max_u64(client->session.flushed, changed);
    pthread_mutex_unlock(&client->lock);
    return check_flushes(&round, error);
}

/* ---- reading and writing ---------------------------------------------------------------------------------------- */

static int begin_blocks(struct round *round, struct blocks *blocks, struct op *op) {
    int error = round_enter(round, op);
    return error ? error : blocks_cut_range(blocks, op);
}

static int read_blocks(struct op *op, struct round *round, struct blocks *blocks) {
    char *data = op->buffer;
    int error = blocks_read(blocks, round, true);
    round->flags = op->flags & IOU_DENSE && round->agreed.flags & NBD_CAN_DF ? FLAG_DF : 0;
    if (!error)
        error = round_add_data(round, CMD_READ, blocks->start, blocks->end, data + (blocks->start - op->offset), false);
    if (!error)
        error = round_run(round);
    for (unsigned i = 0; !error && i < blocks->count; i++) {
        const struct edge *edge = &blocks->edges[i];
        memcpy(data + (edge->start - op->offset), edge->memory + (edge->start - edge->block), edge->end - edge->start);
    }
    return error;
}

int nbd_read(struct op *op) {
    struct round round;
    struct blocks blocks;
    int error = begin_blocks(&round, &blocks, op);
    if (error)
        return error;
    error = read_blocks(op, &round, &blocks);
    free(blocks.memory);
    return error;
}

void nbd_begin_change(struct round *round) {
    round->client->written = true;
    round->flags = round->op->flags & IOU_FUA && round->agreed.flags & NBD_CAN_FUA ? FLAG_FUA : 0;
}

int nbd_changed(struct round *round, int error) {
    struct op *op = round->op;
    if (!(op->flags & IOU_FUA))
        return error;
    return error || round->agreed.flags & NBD_CAN_FUA ? check_flushes(round, error) : nbd_sync(op);
}

static int write_whole_blocks(struct op *op, struct round *round, struct blocks *blocks) {
    char *data = op->buffer;
    int error = blocks_patch(blocks, round, data);
    if (!error)
        error =
            round_add_data(round, CMD_WRITE, blocks->start, blocks->end, data + (blocks->start - op->offset), false);
    return error ? error : round_run(round);
}

int nbd_write(struct op *op) {
    struct round round;
    struct blocks blocks;
    int error = begin_blocks(&round, &blocks, op);
    if (error)
        return error;
    nbd_begin_change(&round);
    error = write_whole_blocks(op, &round, &blocks);
    free(blocks.memory);
    return nbd_changed(&round, error);
}
