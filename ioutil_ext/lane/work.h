/* SPDX-License-Identifier: Apache-2.0 */

/* A request that runs: what its owner may see, and where its time goes (work.c). */

#ifndef IOUTIL_LANE_WORK_H
#define IOUTIL_LANE_WORK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/lane.h"

struct lane_work {
    atomic_uint_fast64_t began, offset, length; /* began: ns; 0: none runs */
    atomic_uint_fast32_t kind, flags;           /* as in iou_record */
    atomic_uint_fast32_t waiting[IOU_WAITS];    /* tasks that wait now, by iou_wait */
    pthread_mutex_t lock;                       /* a leaf; guards all below */
    uint64_t waited[IOU_WAITS], waited_until;
};

void work_init(struct lane_work *work);
void work_destroy(struct lane_work *work);

/* A request begins, whose head arrived at `began`. what: its kind, flags, offset and length. */
void work_begin(struct lane_work *work, uint64_t began, const iou_record *what);

/* It ends: record it, if requests that took so long are recorded. result: as what, with the result. */
void work_record(struct iou_lane *lane, struct lane_work *work, iou_record result);

/* If one runs, it ends with its connection. */
void work_cut(struct iou_lane *lane, struct lane_work *work);

/* Describe the request, with its waits so far. False: none runs. */
bool work_look(struct lane_work *work, iou_record *record);

/* Begin and end a wait of the calling task. work_wait() returns the time, for work_go_on(). */
uint64_t work_wait(iou_wait kind);
void work_go_on(iou_wait kind, uint64_t since);

#endif
