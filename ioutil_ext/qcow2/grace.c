/* SPDX-License-Identifier: Apache-2.0 */

#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/grace.h"

/* ---- alone ------------------------------------------------------------------------------------------------------ */

bool busy_wait(struct qcow2 *q, uint64_t first, uint64_t end) {
    for (struct link *node = q->busy.next; node != &q->busy; node = node->next) {
        struct busy *busy = container_of(node, struct busy, link);
        struct waiter waiter;
        if (busy->end <= first || end <= busy->first)
            continue;
        waiter_join(&waiter, &busy->waiters);
        pthread_mutex_unlock(&q->lock);
        waiter_sleep(&waiter, FOR_EVER);
        pthread_mutex_lock(&q->lock);
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
    struct link served;
    link_remove(&busy->link);
    link_init(&served);
    while (!link_empty(&busy->waiters))
        waiter_serve(container_of(busy->waiters.next, struct waiter, link), &served);
    if (link_empty(&served))
        return;
    pthread_mutex_unlock(&q->lock);
    waiters_wake(&served);
    pthread_mutex_lock(&q->lock);
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

void frees_move(struct frees *from, struct frees *to) {
    for (uint64_t i = 0; i < from->count; i++)
        frees_add(to, from->all[i].first, from->all[i].count);
    frees_free(from);
}

void frees_free(struct frees *frees) {
    free(frees->all);
    *frees = (struct frees){0};
}
