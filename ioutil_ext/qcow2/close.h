/* SPDX-License-Identifier: Apache-2.0 */

/* The end of an image and of its chain (close.c). Blocks. */

#ifndef IOUTIL_QCOW2_CLOSE_H
#define IOUTIL_QCOW2_CLOSE_H

#include "qcow2/qcow2.h"

/* Put what is in memory into the file, and close all files. */
void close_chain(iou_handle *handle);

/* Close the files, and free the memory, of a chain that may be there only in part. Nothing is written. */
void close_files(struct chain *chain);

#endif
