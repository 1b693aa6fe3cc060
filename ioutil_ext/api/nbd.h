/* SPDX-License-Identifier: Apache-2.0 */

/*
 * NBD as its lanes know it: numbers of the transmission phase (the NBD project's proto.md), limits, texts. Read by
 * cffi's cdef(): a test compares them with those of nbdproto, which negotiates what is served here.
 */

#ifndef IOUTIL_API_NBD_H
#define IOUTIL_API_NBD_H

#include <stdint.h>

enum { CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES, CMD_BLOCK_STATUS, COMMANDS };
enum { FLAG_FUA = 1, FLAG_NO_HOLE = 2, FLAG_DF = 4, FLAG_REQ_ONE = 8, FLAG_FAST_ZERO = 16, FLAG_PAYLOAD_LEN = 32 };
enum {
    NBD_EPERM = 1,
    NBD_EIO = 5,
    NBD_ENOMEM = 12,
    NBD_EINVAL = 22,
    NBD_ENOSPC = 28,
    NBD_EOVERFLOW = 75,
    NBD_ENOTSUP = 95,
    NBD_ESHUTDOWN = 108
};
enum { CHUNK_NONE = 0, CHUNK_DATA = 1, CHUNK_HOLE = 2, CHUNK_STATUS = 5, CHUNK_STATUS_EXT = 6, CHUNK_ERROR = 0x8001 };

/* Limits, in bytes or of their number. */
enum {
    MAX_PAYLOAD = 33554432,     /* what READ and WRITE may move */
    MAX_DRAINED = 67108864,     /* a longer payload is not read only to be refused: the connection ends */
    MAX_STATUS_EXTENTS = 65536, /* in one reply */
    MAX_ERROR_TEXT = 256        /* with an error */
};

/* What clients are told with an error, whoever serves them. Of a fault of the server, the detail is in the log only. */
typedef enum {
    IOU_NBD_FAILED = 0,
    IOU_NBD_ENDED,    /* expired, cancelled and removed look the same */
    IOU_NBD_NOT_FAST, /* zero, as it was asked for */
    IOU_NBD_OUTSIDE,  /* of the image, which has got shorter */
    IOU_NBD_TOO_LONG, /* for the memory there is */
    IOU_NBD_NO_MEMORY /* now */
} iou_nbd_reason;

/* Static text; NULL: there is no such. */
const char *iou_nbd_text(uint32_t reason);

#endif
