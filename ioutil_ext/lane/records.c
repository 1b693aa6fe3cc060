/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A record of each request, for the log. All lanes write to one ring, and the owner reads it. Writers and reader do not
 * wait for each other: a record without room is lost, and counted.
 *
 * Records are numbered. Record n goes to slot n modulo the size. The slot's turn is its state. 2 r: the record of round
 * r may be written; 2 r + 1: it was written and may be read. A writer takes a number only if the slot may be written.
 */

#include <errno.h>
#include <stdlib.h>

#include "lane/lane.h"
#include "lane/lanes.h"

#define CACHE_LINE 64u

struct slot {
    atomic_uint_fast64_t turn;
    iou_record record;
};

struct records {
    char before[CACHE_LINE]; /* each request reads `least`: no member that changes shares its cache line */
    atomic_uint_fast64_t least;
    char after[CACHE_LINE];
    atomic_uint_fast64_t next; /* the number of the next record */
    atomic_uint_fast64_t lost;
    pthread_mutex_t lock; /* of the reader */
    uint64_t read;        /* the number of the next record that is read */
    struct slot slots[IOU_RECORDS];
};

/* A ring of zeros is empty. calloc(3) does not touch its pages before their first use. */
struct records *records_new(void) {
    struct records *records = calloc(1, sizeof(*records));
    if (!records)
        return NULL;
    pthread_mutex_init(&records->lock, NULL);
    records->least = UINT64_MAX;
    return records;
}

void records_free(struct records *records) {
    pthread_mutex_destroy(&records->lock);
    free(records);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

uint64_t records_least(const struct records *records) {
    return atomic_load_explicit(&records->least, memory_order_relaxed);
}

/* Take the next number, and its slot. NULL: there is no room. */
static struct slot *take_slot(struct records *records, uint64_t *turn) {
    uint64_t number = atomic_load_explicit(&records->next, memory_order_relaxed);
    for (;;) {
        struct slot *slot = &records->slots[number % IOU_RECORDS];
        uint64_t now = atomic_load_explicit(&slot->turn, memory_order_acquire);
        *turn = 2 * (number / IOU_RECORDS);
        if (now < *turn)
            return NULL; /* the record of the round before was not read yet */
        if (now > *turn) /* another thread has taken this number */
            number = atomic_load_explicit(&records->next, memory_order_relaxed);
        else if (atomic_compare_exchange_weak_explicit(&records->next, &number, number + 1, memory_order_relaxed,
                                                       memory_order_relaxed))
            return slot;
    }
}

void records_add(struct records *records, const iou_record *record) {
    uint64_t turn;
    struct slot *slot = take_slot(records, &turn);
    if (!slot) {
        atomic_fetch_add_explicit(&records->lost, 1, memory_order_relaxed);
        return;
    }
    slot->record = *record;
    atomic_store_explicit(&slot->turn, turn + 1, memory_order_release);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

void iou_records_want(iou_lanes *lanes, uint64_t least) {
    atomic_store_explicit(&lanes->records->least, least, memory_order_relaxed);
}

/* Move the next record. False: there is none, or its writer has not finished it. */
static bool take_record(struct records *records, iou_record *record) {
    struct slot *slot = &records->slots[records->read % IOU_RECORDS];
    uint64_t turn = 2 * (records->read / IOU_RECORDS) + 1;
    if (atomic_load_explicit(&slot->turn, memory_order_acquire) != turn)
        return false;
    *record = slot->record;
    atomic_store_explicit(&slot->turn, turn + 1, memory_order_release);
    records->read++;
    return true;
}

int iou_records_read(iou_lanes *lanes, iou_record *place, uint32_t max) {
    struct records *records = lanes->records;
    uint32_t count = 0;
    if (lanes_are_foreign(lanes))
        return -ECHILD;
    pthread_mutex_lock(&records->lock);
    while (count < max && take_record(records, &place[count]))
        count++;
    pthread_mutex_unlock(&records->lock);
    return (int)count;
}

void iou_records_get_stats(iou_lanes *lanes, iou_records_stats *stats) {
    struct records *records = lanes->records;
    *stats = (iou_records_stats){0};
    if (lanes_are_foreign(lanes))
        return;
    stats->written = atomic_load_explicit(&records->next, memory_order_relaxed);
    stats->lost = atomic_load_explicit(&records->lost, memory_order_relaxed);
    pthread_mutex_lock(&records->lock);
    stats->read = records->read;
    pthread_mutex_unlock(&records->lock);
}
