/* SPDX-License-Identifier: Apache-2.0 */

#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/grace.h"

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

void qcow2_await(struct qcow2 *q, struct link *waiters) {
    struct waiter waiter;
    waiter_join(&waiter, waiters);
    pthread_mutex_unlock(&q->lock);
    waiter_sleep(&waiter, FOR_EVER);
    pthread_mutex_lock(&q->lock);
}

void qcow2_wake(struct qcow2 *q, struct link *waiters) {
    struct link served;
    if (link_empty(waiters))
        return;
    waiters_serve(waiters, &served);
    pthread_mutex_unlock(&q->lock);
    waiters_wake(&served);
    pthread_mutex_lock(&q->lock);
}

/* ---- alone ------------------------------------------------------------------------------------------------------ */

bool busy_wait(struct qcow2 *q, uint64_t first, uint64_t end) {
    for (struct link *node = q->busy.next; node != &q->busy; node = node->next) {
        struct busy *busy = container_of(node, struct busy, link);
        if (busy->end <= first || end <= busy->first)
            continue;
        qcow2_await(q, &busy->waiters);
        return true;
    }
    return false;
}

bool busy_enter(struct qcow2 *q, struct busy *busy, uint64_t first, uint64_t end) {
    if (busy_wait(q, first, end))
        return false;
    busy->first = first;
    busy->end = end;
    link_init(&busy->waiters);
    link_append(&q->busy, &busy->link);
    return true;
}

void busy_leave(struct qcow2 *q, struct busy *busy) {
    link_remove(&busy->link);
    qcow2_wake(q, &busy->waiters);
}

/* ---- frees ------------------------------------------------------------------------------------------------------ */

void frees_add(struct frees *frees, uint64_t first, uint64_t count) {
    struct freed *last = frees->count ? &frees->all[frees->count - 1] : NULL;
    if (last && last->first + last->count == first) {
        last->count += count;
        frees->clusters += count;
        return;
    }
    if (frees->count == frees->room) {
        uint64_t room = max_u64(16, 2 * frees->room);
        struct freed *all = realloc(frees->all, room * sizeof(*all));
        if (!all)
            return;
        frees->all = all;
        frees->room = room;
    }
    frees->all[frees->count++] = (struct freed){first, count};
    frees->clusters += count;
}

void frees_free(struct frees *frees) {
    free(frees->all);
    *frees = (struct frees){0};
}
