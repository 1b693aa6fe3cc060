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

/* Return the ns that a request took at least that is recorded. */
uint64_t records_least(const struct records *records);

#endif
