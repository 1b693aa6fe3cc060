/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Writing clusters elsewhere: because snapshots or compressed clusters share the old cluster, the files below have the
 * data, or no cluster of zeros is free. A cluster that is written in part is read, and written as a whole by one write.
 * Other writers of the guest's cluster wait. The old cluster is freed by the next flush.
 */

#include <errno.h>

#include "base/numbers.h"
#include "qcow2/grace.h"
#include "qcow2/image.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"

/* Return how many bytes of the request are in these clusters. */
static uint64_t copied_length(const struct write *write, uint64_t number, uint64_t count) {
    return min_u64(write->length, ((number + count) << write->q->cluster_bits) - write->pos);
}

/* Write a cluster of which the request has a part. Behind the end of the disk it has zeros. */
static int merge(struct write *write, uint64_t number, uint64_t host) {
    struct qcow2 *q = write->q;
    uint64_t start = number << q->cluster_bits, inside = min_u64(q->cluster, write->chain->image.size - start);
    uint64_t length = copied_length(write, number, 1);
    char *cluster = buffers_get(write->op, &write->chain->merging, q->cluster);
    if (!cluster)
        return -ENOMEM;
    memset(cluster + inside, 0, q->cluster - inside);
    int error = length < inside ? chain_read(write->chain, write->op, 0, cluster, start, inside) : 0;
    if (!error && write->data)
        memcpy(cluster + (write->pos - start), write->data, length);
    else
        memset(cluster + (write->pos - start), 0, length);
    if (!error)
        error = layer_write(write->op, q->file, cluster, host, q->cluster);
    if (!write->data)
        write->op->result.method = IOU_METHOD_WRITE;
    buffers_free(write->op, &write->chain->merging, cluster, q->cluster);
    return error;
}

int write_content(struct write *write, uint64_t host, uint64_t length, bool zeros) {
    if (write->data)
        return layer_write(write->op, write->q->file, write->data, host, length);
    return zeros ? 0 : layer_zero(write->op, write->q->file, host, length, write->flags | IOU_ALLOCATE);
}

static int fill_cluster(struct write *write, uint64_t number, const struct taken *taken) {
    uint32_t bits = write->q->cluster_bits;
    uint64_t host = taken->first << bits, length = taken->count << bits;
    if (copied_length(write, number, taken->count) == length)
        return write_content(write, host, length, taken->zeros);
    return write->flags & IOU_FAST_ONLY ? op_fail(write->op, IOU_SYS_NONE, ENOTSUP) : merge(write, number, host);
}

static int64_t copy_clusters(struct write *write, struct slice *slice, uint64_t number, uint64_t count) {
    struct qcow2 *q = write->q;
    struct taken taken;
    int error = space_take(q, write->op, count, write->data ? WANT_ANY : WANT_ZEROS, &taken);
    if (error)
        return error;
    pthread_mutex_unlock(&q->lock);
    error = fill_cluster(write, number, &taken);
    pthread_mutex_lock(&q->lock);
    if (error) {
        space_give_back(q, write->op, &taken, true);
        return error;
    }
    link_taken(q, slice, number, &taken);
    uint64_t length = copied_length(write, number, taken.count);
    q->counts.copied += (taken.count << q->cluster_bits) - length;
    return (int64_t)length;
}

int64_t write_copy(struct write *write, struct slice *slice, uint64_t number, uint64_t count) {
    struct qcow2 *q = write->q;
    struct busy busy;
    if (!busy_enter(q, &busy, number, number + count))
        return 0;
    int64_t done = copy_clusters(write, slice, number, count);
    busy_leave(q, &busy);
    return done;
}
