/* SPDX-License-Identifier: Apache-2.0 */

/* Messages of the transmission phase (wire.c). They need no lane. */

#ifndef IOUTIL_NBD_WIRE_H
#define IOUTIL_NBD_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/lane.h"
#include "api/nbd.h"
#include "base/numbers.h"

#define MAX_HEADER 32u /* bytes of the longest header: of an extended request or reply */
#define MAX_EXTENT 16u /* bytes of an extent in a reply */
#define MAX_COMPACT_EXTENT (((uint64_t)1 << 32) - 64 * KIB)

struct request {
    uint64_t cookie; /* in the byte order of the client */
    uint64_t offset, length, payload;
    uint16_t flags, command;
    uint32_t error;   /* the NBD error if the request is refused, else 0 */
    const char *text; /* of the error */
    uint64_t began;   /* for its record */
    uint32_t *told;   /* reply_error() stores the error of the reply here */
};

/* The results of the negotiation. */
struct dialect {
    uint64_t size;
    uint32_t flags;
    uint32_t header_size; /* of requests */
};

/* Whether replies come in chunks. */
static inline bool wire_has_chunks(const struct dialect *dialect) {
    return dialect->flags & (IOU_LANE_STRUCTURED | IOU_LANE_EXTENDED);
}

/* Parse a request header, and refuse the request if it is not allowed. Returns 0, or -EPROTO if the magic number is
   wrong. Then the following bytes cannot be understood. */
int wire_parse(const struct dialect *dialect, const char *header, struct request *request);

/* Write a header of at most MAX_HEADER bytes. Returns its size. */
size_t wire_simple(char *header, const struct request *request, uint32_t error);
size_t wire_chunk(char *header, const struct dialect *dialect, const struct request *request, uint16_t type, bool done,
                  uint64_t length);

#endif
