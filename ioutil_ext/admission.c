/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Admission: a block that is read, changed and written back must not be changed by anybody else meanwhile. Locking only
 * such blocks is not enough, because an aligned write does not lock: it is undone when it falls between the read and
 * the write. So all that changes an image claims its range here before it starts, and waits while it conflicts with an
 * earlier claim. A claim that waits occupies no thread.
 *
 * Claims stand in one list in order of arrival. Each counts the earlier claims it conflicts with; when one of them
 * goes, those behind it that conflict with it count down. Who comes later waits also for those that wait, so nobody is
 * overtaken for ever, and waiting always points to earlier claims, so there are no circles.
 *
 * As long as no claim of the image has edges, nothing is compared: the price beside the list is one load.
 */

#include "internal.h"

static bool overlap(const struct range *a, const struct range *b) {
    return a->start < b->end && b->start < a->end;
}

static bool is_empty(const struct range *range) {
    return range->start == range->end;
}

static bool has_edges(const struct claim *claim) {
    return !is_empty(&claim->edges[0]) || !is_empty(&claim->edges[1]);
}

static bool edge_meets(const struct claim *claim, const struct claim *other) {
    for (int i = 0; i < 2; i++)
        if (!is_empty(&claim->edges[i]) && overlap(&claim->edges[i], &other->whole))
            return true;
    return false;
}

static bool conflict(const struct claim *a, const struct claim *b) {
    return edge_meets(a, b) || edge_meets(b, a);
}

static uint32_t count_blockers(const struct image *image, const struct claim *claim) {
    uint32_t blockers = 0;
    for (const struct link *node = image->claims.next; node != &image->claims; node = node->next)
        blockers += conflict(container_of(node, const struct claim, link), claim);
    return blockers;
}

bool claim_take(struct image *image, struct claim *claim) {
    bool edges = has_edges(claim);
    claim->blockers = 0;
    claim->next_admitted = NULL;
    pthread_mutex_lock(&image->claims_lock);
    if (edges || image->edge_claims)
        claim->blockers = count_blockers(image, claim);
    image->edge_claims += edges;
    link_append(&image->claims, &claim->link);
    bool admitted = claim->blockers == 0;
    pthread_mutex_unlock(&image->claims_lock);
    return admitted;
}

/* Remove the claim; chain what may run now to *freed, which keeps the order of arrival. The lock is held. */
static void remove_claim(struct image *image, struct claim *claim, struct claim **freed) {
    struct link *node = claim->link.next;
    link_remove(&claim->link);
    if (image->edge_claims == 0)
        return;
    image->edge_claims -= has_edges(claim);
    while (*freed)
        freed = &(*freed)->next_admitted;
    for (; node != &image->claims; node = node->next) {
        struct claim *later = container_of(node, struct claim, link);
        if (later->blockers == 0 || !conflict(claim, later) || --later->blockers)
            continue;
        if (later->admitted) {
            *freed = later;
            freed = &later->next_admitted;
        } else {
            pthread_cond_broadcast(&image->claims_changed);
        }
    }
}

void claim_release(struct image *image, struct claim *claim) {
    struct claim *freed = NULL;
    pthread_mutex_lock(&image->claims_lock);
    remove_claim(image, claim, &freed);
    pthread_mutex_unlock(&image->claims_lock);
    claims_admit(freed);
}

bool claim_wait(struct image *image, struct claim *claim, const uint32_t *canceled) {
    struct claim *freed = NULL;
    pthread_mutex_lock(&image->claims_lock);
    while (claim->blockers && !(canceled && __atomic_load_n(canceled, __ATOMIC_RELAXED)))
        pthread_cond_wait(&image->claims_changed, &image->claims_lock);
    bool admitted = claim->blockers == 0;
    if (!admitted)
        remove_claim(image, claim, &freed);
    pthread_mutex_unlock(&image->claims_lock);
    claims_admit(freed);
    return admitted;
}

void claims_wake(struct image *image) {
    pthread_mutex_lock(&image->claims_lock);
    pthread_cond_broadcast(&image->claims_changed);
    pthread_mutex_unlock(&image->claims_lock);
}

bool claim_withdraw(struct image *image, struct claim *claim, struct claim **freed) {
    pthread_mutex_lock(&image->claims_lock);
    bool waits = claim->blockers > 0;
    if (waits)
        remove_claim(image, claim, freed);
    pthread_mutex_unlock(&image->claims_lock);
    return waits;
}

void claims_admit(struct claim *freed) {
    while (freed) {
        struct claim *next = freed->next_admitted; /* an admitted operation may end, and be freed, at once */
        freed->admitted(freed);
        freed = next;
    }
}
