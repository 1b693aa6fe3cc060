/* SPDX-License-Identifier: Apache-2.0 */

/* One connection that C serves, of any protocol (lane.c). */

#ifndef IOUTIL_LANE_LANE_H
#define IOUTIL_LANE_LANE_H

#include <stdatomic.h>
#include <stdint.h>

#include "api/lane.h"
#include "image/handle.h"
#include "lane/counts.h"
#include "lane/receive.h"
#include "lane/shared.h"
#include "lane/socket.h"
#include "lane/state.h"
#include "lane/tasks.h"
#include "quota/pool.h"

struct iou_lane {
    struct iou_lanes *lanes;
    struct iou_engine *engine;
    iou_handle *handle; /* holds a reference */
    iou_control *control;
    iou_lease *lease;
    iou_bucket *bucket; /* NULL: there is no limit on the rate */
    const struct lane_kind *kind;
    void *own;       /* the state of the kind */
    uint64_t number; /* of the lane, in records */
    uint64_t size;
    uint32_t flags;
    int timeout_ms;
    struct memory_user memory;
    struct link member; /* in lanes->members */
    struct lane_state state;
    struct lane_socket socket;
    struct lane_staging staging; /* for the leader, which reads from the socket */
    struct lane_tasks tasks;
    struct lane_counts counts;
};

/*
 * Start a lane. own: the state of the kind, which kind->end() frees; after a failure the caller still owns it. Returns
 * as iou_nbd_start() does.
 */
int lane_start(iou_lanes *lanes, iou_handle *handle, const iou_lane_options *options, const struct lane_kind *kind,
               void *own, iou_lane **result);

#endif
