/* SPDX-License-Identifier: Apache-2.0 */

/* The locks of an image that is written, which other programs respect (locks.c). */

#ifndef IOUTIL_IMAGE_LOCKS_H
#define IOUTIL_IMAGE_LOCKS_H

#include "image/handle.h"

/*
 * Let a handle of an image hold the image's locks, which the first one takes; they are released with the last one. Raw
 * images share them among all that write; with HANDLE_FORMAT either those that read do, or one has them that writes.
 * EBUSY with IOU_SYS_LOCK: another program has locked the image; with IOU_SYS_OPEN: the device is mounted, or part of
 * another device.
 */
int locks_hold(struct op *op, iou_handle *handle);
void locks_release(iou_handle *handle);

#endif
