/* SPDX-License-Identifier: Apache-2.0 */

/* Records of requests, for the log (records.c). */

#ifndef IOUTIL_LANE_RECORDS_H
#define IOUTIL_LANE_RECORDS_H

#include <stdint.h>

#include "api/lane.h"

/* NULL: no memory. */
struct records *records_new(void);
void records_free(struct records *records);

/* What waits for nobody: a record for which there is no room is lost. */
void records_add(struct records *records, const iou_record *record);

/* The time if requests are recorded now, else 0: to be kept with a request. */
uint64_t record_begin(const struct iou_lane *lane);

/* Record a request that has ended, if that was wanted when it began. lane and elapsed are filled in. */
void record_end(const struct iou_lane *lane, uint64_t began, iou_record record);

#endif
