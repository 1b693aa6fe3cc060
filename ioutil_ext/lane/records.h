/* SPDX-License-Identifier: Apache-2.0 */

/* The records of requests, for the log (records.c). */

#ifndef IOUTIL_LANE_RECORDS_H
#define IOUTIL_LANE_RECORDS_H

#include <stdint.h>

#include "api/lane.h"

/* Make an empty ring of records. NULL: no memory. */
struct records *records_new(void);
void records_free(struct records *records);

/* Add a record, without waiting. If there is no room, the record is lost and counted. */
void records_add(struct records *records, const iou_record *record);

/* Return the time if requests are recorded now, else 0. The request keeps it for record_end(). */
uint64_t record_begin(const struct iou_lane *lane);

/* Record a request that has ended, unless began is 0. Fills in lane and elapsed. */
void record_end(const struct iou_lane *lane, uint64_t began, iou_record record);

#endif
