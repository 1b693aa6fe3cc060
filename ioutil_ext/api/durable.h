/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Records of durable ranges: the bytes of an image that were written or zeroed through one handle and are on stable
 * storage. A record is kept in a file, its journal. cffi's cdef() reads this after api/ioutil.h, whose conventions
 * apply.
 *
 * The guarantee: each range of a record was written by changes that had ended before a flush began, and that flush has
 * succeeded. Before a change begins, its range is removed from the record, and the removal is on stable storage. So
 * after a crash a journal may lack ranges that are durable, but contains none that is not.
 *
 * A handle with a record (iou_handle_durable()) keeps it up to date: each kind of image calls the functions below for
 * its changes and flushes. If the record is NULL, they record nothing.
 */

#ifndef IOUTIL_API_DURABLE_H
#define IOUTIL_API_DURABLE_H

#include <stdint.h>

#include "api/ioutil.h"

typedef struct iou_durable iou_durable;
typedef struct iou_covered iou_covered; /* the ranges that a running flush will make durable */

enum {
    IOU_DURABLE_RANGES = 16384, /* most ranges of a record; further ranges are left out */
    IOU_DURABLE_HEADER = 255    /* most bytes of the text in a journal's first line */
};

typedef struct {
    uint64_t bytes;     /* durable bytes */
    uint32_t ranges;    /* ranges of these bytes */
    uint32_t closed;    /* no range is added any more, because a flush has failed or the journal cannot be kept */
    int32_t error;      /* errno of the first failure of the journal, or 0 */
    uint32_t unwritten; /* durable ranges that the journal does not have yet */
} iou_durable_info;

/*
 * Make a record with these ranges, which are sorted and do not touch, and write a new journal. `directory` is an open
 * directory, which the caller keeps open until iou_durable_end(), and `name` is the journal's file in it. `header` is
 * printable ASCII that identifies image and ticket. Blocks on the directory's storage. Returns 0, -EINVAL, -ENOMEM, or
 * the error of a system call. After an error the file of this name is either the journal that was there before, if
 * there was one, or the new one.
 */
int iou_durable_new(int directory, const char *name, const char *header, const iou_range *ranges, uint32_t count,
                    iou_durable **result);

/*
 * Write the ranges that the journal does not have yet, and close it. The caller that made the record calls this when
 * the image is closed. After that, no range is added, a change of durable bytes fails, and another record may use the
 * journal. Blocks.
 */
void iou_durable_end(iou_durable *record);

/* Add a reference, or drop one. */
void iou_durable_retain(iou_durable *record);
void iou_durable_release(iou_durable *record);

/* Attach a record to a handle, whose operations then keep it up to date. Call this at most once, before the first
   operation. The handle takes a reference to the record. Returns 0, or -EINVAL if the handle has a record already. */
int iou_handle_durable(iou_handle *handle, iou_durable *record);

/*
 * Remove a range from the record. Call this before a change of the range begins, when earlier changes of it have ended.
 * Blocks on the storage of the journal if the range is durable. Returns 0, or a negative errno if the removal is not on
 * stable storage; then the change must not begin.
 */
int iou_durable_change(iou_durable *record, uint64_t offset, uint64_t length);

/* Do the same if that does not need the journal. Otherwise change nothing and return -EAGAIN. */
int iou_durable_try_change(iou_durable *record, uint64_t offset, uint64_t length);

/* Add a range when its write or zero has succeeded. Pass `durable` if it is on stable storage without a flush (FUA). */
void iou_durable_changed(iou_durable *record, uint64_t offset, uint64_t length, uint32_t durable);

/* Begin a flush. Returns what it covers: the ranges that were changed before, limited to this range unless `length` is
   0. Returns NULL if there are none. */
iou_covered *iou_durable_flush(iou_durable *record, uint64_t offset, uint64_t length);

/*
 * End a flush, and free `covered`. With `error` 0, the covered ranges are durable now. ECANCELED means that a later
 * flush may make them durable. Any other errno means that each later flush fails, too, and closes the record.
 */
void iou_durable_flushed(iou_durable *record, iou_covered *covered, int32_t error);

/* Return whether the journal should be written: it lacks durable ranges and was not written many times just now, or has
   not had all of them on stable storage for a second. */
int iou_durable_is_due(iou_durable *record);

/* Write the durable ranges that the journal does not have yet, and sync it once a second. Blocks. */
void iou_durable_write(iou_durable *record);

/* Close the record for good, and remove its journal durably. Blocks. Returns 0, or a negative errno if the file is
   still there. */
int iou_durable_void(iou_durable *record);

/* Fill the array with at most `max` durable ranges that end behind an offset, in order. Returns how many. */
uint32_t iou_durable_ranges(iou_durable *record, uint64_t offset, iou_range *ranges, uint32_t max);

void iou_durable_state(iou_durable *record, iou_durable_info *info);

#endif
