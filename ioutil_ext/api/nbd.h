/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The numbers of NBD's transmission phase (the NBD project's proto.md), limits and texts, for lanes and for the client
 * of other servers. cffi's cdef() reads this. The Python package nbdproto, for the negotiation, has its own copy of the
 * numbers, and a test compares the two.
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
enum {
    MAGIC_REQUEST = 0x25609513,
    MAGIC_EXTENDED_REQUEST = 0x21E41C71,
    MAGIC_SIMPLE_REPLY = 0x67446698,
    MAGIC_CHUNK = 0x668E33EF,
    MAGIC_EXTENDED_CHUNK = 0x6E8A278C
};
enum { REPLY_FLAG_DONE = 1 }; /* a flag of a chunk */
enum { CHUNK_NONE = 0, CHUNK_DATA = 1, CHUNK_HOLE = 2, CHUNK_STATUS = 5, CHUNK_STATUS_EXT = 6, CHUNK_ERROR = 0x8001 };

/* Limits, in bytes unless the comment says otherwise. */
enum {
    MAX_PAYLOAD = 33554432,      /* of READ and WRITE */
    MAX_DRAINED = 67108864,      /* the connection ends if a refused payload is longer; a shorter one is read */
    MAX_STATUS_EXTENTS = 131072, /* extents in one reply: qemu-nbd's limit, so none of its extents is lost */
    MAX_ERROR_TEXT = 256         /* of the text in an error reply */
};

/* The reasons in error replies. The reply does not name the fault of a server; the log does. */
typedef enum {
    IOU_NBD_FAILED = 0, /* a fault of the server */
    IOU_NBD_ENDED,      /* the ticket has expired, or was cancelled or removed; the client cannot know which */
    IOU_NBD_NOT_FAST,   /* zeroing needs data I/O, and the request has FAST_ZERO */
    IOU_NBD_OUTSIDE,    /* the range is outside of the image, which has got shorter */
    IOU_NBD_TOO_LONG,   /* the request is too long for the memory of lanes */
    IOU_NBD_NO_MEMORY   /* there is no memory for the request now */
} iou_nbd_reason;

/* Return the static text for a reason, or NULL if there is no such reason. */
const char *iou_nbd_text(uint32_t reason);

#endif
