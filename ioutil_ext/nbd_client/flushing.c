/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Flushing. After a failure each flush fails: the data of other writes may be what was lost. So it does after a session
 * that has ended with changes that no flush had covered, or that were not answered.
 */

#include <errno.h>

#include "base/numbers.h"
#include "nbd_client/parts.h"

void nbd_flush_failed(struct op *op) {
    struct client *client = client_of(op->handle);
    pthread_mutex_lock(&client->lock);
    const iou_nbd_failure *failure = failure_find(client, op->result.size);
    if (!client->flush_failure.number && failure)
        client->flush_failure = *failure;
    pthread_mutex_unlock(&client->lock);
    iou_durable_flushed(op->handle->durable, NULL, EIO);
}

/* Send a flush on each connection: it covers what was answered on that one, at least. */
static int flush_all(struct round *round, uint32_t connections) {
    int error = 0;
    for (uint32_t i = 0; !error && i < connections; i++)
        error = round_add(round, (struct nbd_request){.command = CMD_FLUSH});
    return error ? error : round_run(round);
}

int nbd_sync(struct op *op) {
    struct round round;
    int error = round_enter(&round, op);
    if (error)
        return error;
    struct client *client = round.client;
    pthread_mutex_lock(&client->lock);
    iou_nbd_failure failure = client->flush_failure;
    uint64_t changed = client->session.changed, session = client->session.number;
    uint32_t connections = client->session.count;
    if (!failure.number && !(round.agreed.flags & NBD_CAN_FLUSH))
        failure.number = failure_add(client, IOU_NBD_NO_FLUSH, NULL, failure.error = EOPNOTSUPP, "", 0);
    pthread_mutex_unlock(&client->lock);
    if (failure.number)
        return round_fail(&round, failure.number, failure.error);
    error = flush_all(&round, connections);
    if (error && op->result.syscall == IOU_SYS_SERVER && error != -ENOTCONN)
        nbd_flush_failed(op);
    pthread_mutex_lock(&client->lock);
    if (!error && client->session.number == session)
        client->session.flushed = max_u64(client->session.flushed, changed);
    pthread_mutex_unlock(&client->lock);
    return error;
}
