/* SPDX-License-Identifier: Apache-2.0 */

/* The row of functions for images in the format qcow2 (image.c). */

#ifndef IOUTIL_QCOW2_IMAGE_H
#define IOUTIL_QCOW2_IMAGE_H

#include "qcow2/qcow2.h"

extern const struct image_ops QCOW2_IMAGE;

#endif
