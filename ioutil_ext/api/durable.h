/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Records of durable ranges: the bytes of an image that were written or zeroed through one handle and are on stable
 * storage. A record is kept in a file, its journal. cffi's cdef() reads this after api/ioutil.h, whose conventions
 * apply.
 *
 * The guarantee: each range of a record was written by changes that had ended before a flush began, and that flush has
 * succeeded. A change takes its range out before it begins, and the removal is on stable storage before that. So after
 * a crash a journal tells less than is durable, never more.
 *
 * Operations on a handle keep its record (iou_handle_durable()): each kind of image calls the functions below for its
 * changes and flushes. A NULL record records nothing.
 */

#ifndef IOUTIL_API_DURABLE_H
#define IOUTIL_API_DURABLE_H

#include <stdint.h>

#include "api/ioutil.h"

typedef struct iou_durable iou_durable;
typedef struct iou_covered iou_covered; /* what a flush that runs covers */

enum {
    IOU_DURABLE_RANGES = 16384, /* most ranges of a record; above, it tells less */
    IOU_DURABLE_HEADER = 255    /* most bytes of the text in a journal's first line */
};

typedef struct {
    uint64_t bytes;     /* that are durable */
    uint32_t ranges;    /* of them */
    uint32_t closed;    /* a flush has failed, or the journal cannot be kept: nothing is added any more */
    int32_t error;      /* errno of the first failure of the journal, 0: none */
    uint32_t unwritten; /* durable ranges that the journal does not have yet */
} iou_durable_info;

/*
 * Make a record with these ranges, which are sorted and do not touch, and write its journal anew. directory: an open
 * directory, name: the file in it; the caller keeps the directory open until iou_durable_end(). header: printable
 * ASCII, which names image and ticket. Blocks on the directory's storage. -EINVAL, -ENOMEM, and errors of system calls:
 * then the journal with this name is the one that was there, if any, or a new one.
 */
int iou_durable_new(int directory, const char *name, const char *header, const iou_range *ranges, uint32_t count,
                    iou_durable **result);

/*
 * Write what the journal does not have, close it, and let nothing become durable any more. Another record may have the
 * journal after that. Called by who has made the record, when the image was closed. A change of durable bytes that
 * comes later fails. Blocks.
 */
void iou_durable_end(iou_durable *record);

/* Add a reference, or drop one. */
void iou_durable_retain(iou_durable *record);
void iou_durable_release(iou_durable *record);

/* Let the operations of a file's or device's handle keep a record. At most once, before the first operation. The handle
   has a reference to the record. -EINVAL: the handle has a record. */
int iou_handle_durable(iou_handle *handle, iou_durable *record);

/*
 * Take a range out before a change of it begins. Blocks on the storage of the journal if the range is durable. Other
 * changes of the range have ended. A negative errno: the removal is not on stable storage, and the change must not
 * begin.
 */
int iou_durable_change(iou_durable *record, uint64_t offset, uint64_t length);

/* Do the same if this needs no storage. -EAGAIN: it does, and the range is as it was. */
int iou_durable_try_change(iou_durable *record, uint64_t offset, uint64_t length);

/* Add a range that was changed: its write or zero has ended well. durable: it is on stable storage by itself (FUA). */
void iou_durable_changed(iou_durable *record, uint64_t offset, uint64_t length, uint32_t durable);

/* Begin a flush, which covers what was changed before, in this range only if length is not 0. NULL: nothing. */
iou_covered *iou_durable_flush(iou_durable *record, uint64_t offset, uint64_t length);

/*
 * End a flush. error: 0: what it covers is durable; ECANCELED: a later one may make it durable; any other errno: each
 * later flush fails, too, and the record is closed. Frees covered.
 */
void iou_durable_flushed(iou_durable *record, iou_covered *covered, int32_t error);

/* Whether the journal is to be written: durable ranges have waited for a second to be in it, or on stable storage. */
int iou_durable_is_due(iou_durable *record);

/* Write durable ranges that the journal does not have, and sync it once a second. Blocks. */
void iou_durable_write(iou_durable *record);

/* Close the record for good, and remove its journal durably. Blocks. 0 or a negative errno: the file is there still. */
int iou_durable_void(iou_durable *record);

/* Fill at most max ranges with those that are durable and end behind an offset, in order. Returns how many. */
uint32_t iou_durable_ranges(iou_durable *record, uint64_t offset, iou_range *ranges, uint32_t max);

void iou_durable_state(iou_durable *record, iou_durable_info *info);

#endif
