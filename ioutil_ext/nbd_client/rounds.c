/* SPDX-License-Identifier: Apache-2.0 */

/* Running requests of an operation: entering a session, sending, waiting, and the results. */

#include <errno.h>

#include "base/numbers.h"
#include "image/io.h"
#include "nbd_client/rounds.h"

/* Most bytes of a request without data if lengths have 32 bits: a multiple of each block size. */
#define MOST_COMPACT (((uint64_t)1 << 32) - 64 * KIB)
/* The same of a request for block status: some servers use signed numbers, and nbdkit 1.32 aborts at 2^32 - 1. */
#define MOST_COMPACT_STATUS (((uint64_t)1 << 31) - 64 * KIB)

int round_fail(struct round *round, uint64_t number, int error) {
    round->op->result.size = number;
    return op_fail(round->op, IOU_SYS_SERVER, error);
}

/* ---- entering a session ----------------------------------------------------------------------------------------- */

/* Wait until there is a session. Returns the number of the failure that has ended the wait, or 0. The lock is held, and
   released meanwhile. */
static uint64_t await_session(struct client *client, iou_control *control) {
    struct entering entering = {.control = control};
    waiter_join(&entering.waiter, &client->entering);
    client->wanted = true;
    client_notify(client);
    pthread_mutex_unlock(&client->lock);
    waiter_sleep(&entering.waiter, UINT64_MAX);
    pthread_mutex_lock(&client->lock);
    return entering.refused;
}

/* Returns the number of the failure, or 0. The lock is held. */
static uint64_t enter_round(struct client *client, const struct op *op) {
    uint64_t failure = client->unusable.number;
    bool alive = client->session.life == IOU_NBD_ALIVE;
    if (!failure && !alive && (client->leaving || op->flags & IOU_NOW))
        failure = failure_gone(client, "it is not connected to");
    if (!failure && !alive && !op_canceled(op))
        failure = await_session(client, op->control);
    if (!failure && !client->session.count && !op_canceled(op)) /* another one has ended while this thread slept */
        failure = failure_gone(client, "it is not connected to");
    return failure;
}

/* Choose the connection to ask for extents: of those that report the same wanted flags as the first connection, the one
   with the fewest contexts. The search begins with the connection of the first segment. The server looks for all
   contexts of a connection, even if they are not wanted. There is a session. The lock is held. */
static void choose_teller(struct round *round) {
    const struct session *session = &round->client->session;
    const struct contexts *best = NULL;
    uint64_t all = contexts_tell(&session->connections[0].contexts, round->tells);
    for (uint32_t i = 0; i < session->count; i++) {
        uint32_t number = (uint32_t)((round->op->offset / SEGMENT + i) % session->count);
        const struct contexts *contexts = &session->connections[number].contexts;
        if (contexts_tell(contexts, round->tells) != all || (best && contexts->count >= best->count))
            continue;
        best = contexts;
        round->teller = number;
    }
    round->contexts = *best;
}

/* Copy the state of the session. The lock is held. */
static void copy_session(struct round *round) {
    const struct session *session = &round->client->session;
    round->session = session->number;
    round->agreed = session->agreed;
    round->mixes = session->count == 1 || session->agreed.flags & NBD_MULTI_CONN;
    round->longest_bare = session->longest_bare;
    if (round->tells && session->count)
        choose_teller(round);
}

/* Return the flags that extents are to report. */
static uint64_t wanted(const struct op *op) {
    if (op->kind != IOU_EXTENTS || op->tells)
        return op->tells;
    return IOU_EXTENT_ZERO | (op->flags & IOU_LAYERS ? IOU_EXTENT_HOLE : 0) | (op->flags & IOU_DIRTY ? ALL_BITMAPS : 0);
}

static void begin_round(struct round *round, struct op *op) {
    round->op = op;
    round->client = client_of(op->handle);
    round->flags = 0;
    round->tells = wanted(op);
    round->contexts.count = 0;
    round->count = 0;
}

void round_look(struct round *round, struct op *op) {
    begin_round(round, op);
    pthread_mutex_lock(&round->client->lock);
    copy_session(round);
    pthread_mutex_unlock(&round->client->lock);
}

int round_enter(struct round *round, struct op *op) {
    struct client *client = client_of(op->handle);
    begin_round(round, op);
    if (op_canceled(op))
        return op_fail(op, IOU_SYS_NONE, ECANCELED);
    pthread_mutex_lock(&client->lock);
    uint64_t failure = enter_round(client, op);
    copy_session(round);
    pthread_mutex_unlock(&client->lock);
    if (op_canceled(op))
        return op_fail(op, IOU_SYS_NONE, ECANCELED);
    if (failure)
        return round_fail(round, failure, ENOTCONN);
    uint64_t size = client->image.size, length = op->kind == IOU_EXTENTS ? 0 : op->length;
    return length && !lies_in(op->offset, length, size) ? size_ends(op, size) : 0;
}

/* ---- one round -------------------------------------------------------------------------------------------------- */

static struct connection *choose_connection(const struct round *round, uint32_t number) {
    const struct session *session = &round->client->session;
    const struct nbd_request *request = &round->requests[number];
    uint64_t place = request->command == CMD_FLUSH     ? number
                     : request->status && round->mixes ? round->teller
                                                       : request->offset / SEGMENT;
    return &session->connections[place % session->count];
}

/* Queue the requests and send them. False: the session has ended, or takes no requests any more. The lock is held, and
   released meanwhile. */
static bool start_round(struct round *round, struct calls *calls, struct link *served) {
    struct client *client = round->client;
    struct session *session = &client->session;
    if (session->number != round->session || session->life != IOU_NBD_ALIVE)
        return false;
    waiter_join(&calls->waiter, &client->waiting);
    for (uint32_t i = 0; i < round->count; i++) {
        round->requests[i].calls = calls;
        link_append(&choose_connection(round, i)->queue, &round->requests[i].link);
    }
    /* The requests and the round stay until this thread sleeps. While connection_send() releases the lock, the session
       may end, and then be replaced, which ends this loop. */
    for (uint32_t i = 0; i < session->count && session->number == round->session; i++)
        if (!link_empty(&session->connections[i].queue))
            connection_send(&session->connections[i], served);
    return true;
}

/* The result of all requests together. */
struct outcome {
    const struct nbd_request *failed;
    uint64_t done; /* bytes */
};

static void look_at_outcome(struct outcome *outcome, const struct nbd_request *request) {
    if (!request->failure && !request->error) {
        outcome->done += request->counts;
        return;
    }
    if (!outcome->failed || outcome->failed->failure == -ECANCELED) /* a cancellation comes last */
        outcome->failed = request;
}

/* Fail with the failure of a request. If the server refuses it because it shuts down, the session ends. */
static int fail_round(struct round *round, const struct nbd_request *request) {
    struct client *client = round->client;
    if (request->failure == -ECANCELED)
        return op_fail(round->op, IOU_SYS_NONE, ECANCELED);
    if (request->failure)
        return round_fail(round, request->told, ENOTCONN);
    if (request->error != NBD_ESHUTDOWN)
        return round_fail(round, request->told, (int)request->error);
    pthread_mutex_lock(&client->lock);
    uint64_t failure = failure_gone(client, "it is shutting down");
    if (client->session.number == round->session && client->session.life == IOU_NBD_ALIVE)
        session_leave(client, failure, client->close_ms);
    pthread_mutex_unlock(&client->lock);
    return round_fail(round, failure, ENOTCONN);
}

int round_run(struct round *round) {
    struct client *client = round->client;
    struct calls calls = {.left = round->count, .control = round->op->control};
    struct outcome outcome = {0};
    struct link served = LINK_EMPTY(served);
    if (!round->count)
        return 0;
    pthread_mutex_lock(&client->lock);
    bool started = start_round(round, &calls, &served);
    bool same = client->session.number == round->session;
    uint64_t ending = same ? client->session.ending : client->session.ending_before;
    pthread_mutex_unlock(&client->lock);
    if (!started)
        return round_fail(round, ending, ENOTCONN);
    waiters_wake(&served);
    waiter_sleep(&calls.waiter, UINT64_MAX);
    for (uint32_t i = 0; i < round->count; i++)
        look_at_outcome(&outcome, &round->requests[i]);
    round->count = 0;
    op_advance(round->op, outcome.done);
    return outcome.failed ? fail_round(round, outcome.failed) : 0;
}

int round_add(struct round *round, struct nbd_request request) {
    int error = round->count == MOST_TOGETHER ? round_run(round) : 0;
    if (!error)
        round->requests[round->count++] = request;
    return error;
}

/* ---- ranges ----------------------------------------------------------------------------------------------------- */

/* Return how many bytes from the start of a range on are in one segment, at most `most`. */
static uint64_t inside_segment(uint64_t start, uint64_t length, uint64_t most) {
    return min_u64(min_u64(length, most), SEGMENT - start % SEGMENT);
}

int round_add_data(struct round *round, uint16_t command, uint64_t start, uint64_t end, char *memory, bool same) {
    uint64_t piece = round->op->flags & IOU_WHOLE ? UINT64_MAX : round->client->image.pieces.piece, length;
    uint16_t flags = command == CMD_WRITE ? round->flags & FLAG_FUA : round->flags;
    int error = 0;
    for (; !error && start < end; start += length) {
        length = inside_segment(start, end - start, min_u64(piece, round->agreed.most));
        error = round_add(round, (struct nbd_request){.command = command,
                                                      .flags = flags,
                                                      .offset = start,
                                                      .length = length,
                                                      .memory = memory,
                                                      .counts = length});
        memory += same ? 0 : length;
    }
    return error;
}

uint64_t round_bare(const struct round *round, uint64_t offset, uint64_t length) {
    bool status = round->op->kind == IOU_EXTENTS;
    uint64_t most = round->agreed.extended ? length : status ? MOST_COMPACT_STATUS : MOST_COMPACT;
    if (round->longest_bare && !status)
        most = min_u64(most, round->longest_bare);
    return round->mixes ? min_u64(length, most) : inside_segment(offset, length, most);
}

/* If the request that has failed was too long, limit the length of later ones of the session. */
static bool was_too_long(struct round *round) {
    if (!request_was_too_long(&round->requests[0], round->agreed.most))
        return false;
    round->longest_bare = round->agreed.most;
    pthread_mutex_lock(&round->client->lock);
    if (round->client->session.number == round->session)
        round->client->session.longest_bare = round->agreed.most;
    pthread_mutex_unlock(&round->client->lock);
    return true;
}

int round_change(struct round *round, uint16_t command, uint64_t start, uint64_t end) {
    int error = 0;
    for (uint64_t length; !error && start < end; start += length) {
        if (op_canceled(round->op))
            return op_fail(round->op, IOU_SYS_NONE, ECANCELED);
        length = round_bare(round, start, end - start);
        error = round_add(
            round, (struct nbd_request){
                       .command = command, .flags = round->flags, .offset = start, .length = length, .counts = length});
        if (!error)
            error = round_run(round);
        if (error && was_too_long(round)) {
            error = 0;
            length = 0;
        }
    }
    return error;
}
