/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Admission: changes of an image whose ranges overlap are made one after the other, in order of arrival. So what an
 * operation of a client that is gone still does is done before a newer change of the same bytes begins, and a block
 * that is read, changed and written back is not changed by anybody else meanwhile. All that changes an image claims its
 * range here as soon as it is known, and waits while it overlaps an earlier claim. In the engine a claim that waits
 * occupies no thread.
 *
 * Claims stand in one array in order of arrival. Each counts the earlier ones that it overlaps; when one of them goes,
 * those behind it that overlap it count down. Who comes later waits also for those that wait, so nobody is overtaken
 * for ever, and waiting always points to earlier claims, so there are no circles.
 *
 * The ranges stand side by side, because each newcomer is compared with all; in the claims themselves they would be on
 * the stacks of as many threads. To take a claim and give it back takes 18 ns beside no other one, 26 beside 16, 61
 * beside 64 and 241 beside 256.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "image/handle.h"

/* Room for so many claims at first: as many as a lane has threads. */
#define FIRST_ROOM 64u

static bool overlap(const struct range *a, const struct range *b) {
    return a->start < b->end && b->start < a->end;
}

/* ---- the array; the lock is held -------------------------------------------------------------------------------- */

static bool make_room(struct claims *claims) {
    if (claims->count < claims->room)
        return true;
    uint32_t room = claims->room ? 2 * claims->room : FIRST_ROOM;
    struct claimed *all = realloc(claims->all, room * sizeof(*all));
    if (!all)
        return false;
    claims->all = all;
    claims->room = room;
    return true;
}

static uint32_t count_overlaps(const struct claims *claims, const struct range *range) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < claims->count; i++)
        count += overlap(&claims->all[i].range, range);
    return count;
}

/* Mostly one of the oldest. */
static uint32_t find(const struct claims *claims, const struct claim *claim) {
    uint32_t place = 0;
    while (claims->all[place].claim != claim)
        place++;
    return place;
}

/* One that overlapped it is gone. Chain it to *freed if it may run now; returns where the next one is chained. */
static struct claim **count_down(struct claims *claims, struct claim *later, struct claim **freed) {
    if (--later->blockers)
        return freed;
    claims->waiting--;
    if (!later->admitted) {
        pthread_cond_broadcast(&claims->changed);
        return freed;
    }
    *freed = later;
    return &later->next_admitted;
}

/* Remove the claim; chain what may run now to *freed, which keeps the order of arrival. */
static void remove_claim(struct claims *claims, struct claim *claim, struct claim **freed) {
    uint32_t place = find(claims, claim);
    struct range range = claims->all[place].range;
    claims->waiting -= claim->blockers > 0;
    claims->count--;
    memmove(&claims->all[place], &claims->all[place + 1], (claims->count - place) * sizeof(*claims->all));
    if (claims->waiting == 0)
        return;
    while (*freed)
        freed = &(*freed)->next_admitted;
    for (; place < claims->count; place++) {
        struct claimed *later = &claims->all[place];
        if (overlap(&range, &later->range))
            freed = count_down(claims, later->claim, freed);
    }
}

/* ---- for operations --------------------------------------------------------------------------------------------- */

void claims_init(struct claims *claims) {
    *claims = (struct claims){0};
    pthread_mutex_init(&claims->lock, NULL);
    pthread_cond_init(&claims->changed, NULL);
}

void claims_destroy(struct claims *claims) {
    pthread_mutex_destroy(&claims->lock);
    pthread_cond_destroy(&claims->changed);
    free(claims->all);
}

int claim_take(struct claims *claims, struct claim *claim, const struct range *range) {
    pthread_mutex_lock(&claims->lock);
    int error = make_room(claims) ? 0 : -ENOMEM;
    if (!error) {
        claim->blockers = count_overlaps(claims, range);
        claim->next_admitted = NULL;
        claims->all[claims->count++] = (struct claimed){*range, claim};
        if (claim->blockers) {
            claims->waiting++;
            error = -EAGAIN;
        }
    }
    pthread_mutex_unlock(&claims->lock);
    return error;
}

void claim_release(struct claims *claims, struct claim *claim) {
    struct claim *freed = NULL;
    pthread_mutex_lock(&claims->lock);
    remove_claim(claims, claim, &freed);
    pthread_mutex_unlock(&claims->lock);
    claims_admit(freed);
}

bool claim_wait(struct claims *claims, struct claim *claim, const uint32_t *canceled) {
    pthread_mutex_lock(&claims->lock);
    while (claim->blockers && !(canceled && __atomic_load_n(canceled, __ATOMIC_RELAXED)))
        pthread_cond_wait(&claims->changed, &claims->lock);
    bool admitted = claim->blockers == 0;
    pthread_mutex_unlock(&claims->lock);
    return admitted;
}

void claims_wake(struct claims *claims) {
    pthread_mutex_lock(&claims->lock);
    pthread_cond_broadcast(&claims->changed);
    pthread_mutex_unlock(&claims->lock);
}

bool claim_withdraw(struct claims *claims, struct claim *claim, struct claim **freed) {
    pthread_mutex_lock(&claims->lock);
    bool waits = claim->blockers > 0;
    if (waits)
        remove_claim(claims, claim, freed);
    pthread_mutex_unlock(&claims->lock);
    return waits;
}

void claims_admit(struct claim *freed) {
    while (freed) {
        struct claim *next = freed->next_admitted; /* an admitted operation may end, and be freed, at once */
        freed->admitted(freed);
        freed = next;
    }
}

/* ---- edges ------------------------------------------------------------------------------------------------------ */

/*
 * The unit that the ends of a request must be aligned to, if it is to touch nothing beside its range. Zeros and trims:
 * file systems zero parts of a page through the page cache. Writes: what does not fill a block is read-modify-write,
 * but in a buffered file, where the kernel merges. Whether the file is long enough for that block may change until the
 * operation runs, and does not matter: both ways of writing it stay inside of what is claimed. Buffered beside direct:
 * pages dirtied under a direct write of the same page would undo it.
 */
static uint64_t touched_unit(const struct op *op) {
    const iou_handle *handle = op->handle;
    bool mixed = !handle->direct && handle->image->direct_handles;
    return op->kind == IOU_WRITE && !mixed ? handle->unit : handle->lock_unit;
}

struct range change_range(const struct op *op) {
    uint64_t unit = touched_unit(op), lock_unit = op->handle->lock_unit;
    uint64_t start = op->offset, end = op->offset + op->length;
    return (struct range){
        .start = is_aligned(start, unit) ? start : round_down(start, lock_unit),
        .end = is_aligned(end, unit) ? end : round_up(end, lock_unit),
    };
}
