/* SPDX-License-Identifier: Apache-2.0 */

/* A request to a server, and what it was told about a range. No connection is needed (request.c, status.c). */

#ifndef IOUTIL_NBD_CLIENT_REQUEST_H
#define IOUTIL_NBD_CLIENT_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/nbd.h"
#include "api/nbd_client.h"
#include "base/link.h"
#include "durable/ranges.h"

/* Transmission flags of an export. */
enum {
    NBD_CAN_FLUSH = 0x004,
    NBD_CAN_FUA = 0x008,
    NBD_CAN_TRIM = 0x020,
    NBD_CAN_ZERO = 0x040,
    NBD_CAN_DF = 0x080,
    NBD_MULTI_CONN = 0x100,
    NBD_CAN_ZERO_FAST = 0x800
};

#define NBD_MAX_HEADER 32u /* bytes of a request */

/* What was negotiated. */
struct agreed {
    uint32_t flags;
    bool structured, extended;
    uint64_t most; /* bytes of a request's data */
};

/* What was selected on a connection. */
struct contexts {
    uint32_t count;
    iou_nbd_context list[IOU_NBD_CONTEXTS];
};

struct calls;

/* One request. It is in a queue until it is sent, and has a cookie until its reply is complete. */
struct nbd_request {
    struct link link;
    struct calls *calls; /* who waits for its end */
    uint16_t command, flags;
    uint64_t offset, length;
    char *memory;          /* for the data of a READ, or with that of a WRITE */
    struct status *status; /* of BLOCK_STATUS */
    uint64_t counts;       /* bytes by which it advances its operation */
    uint64_t cookie;
    uint64_t unsent;      /* bytes, from its beginning until it is sent as a whole */
    bool answered;        /* its reply is complete, and it was not known to be sent */
    uint64_t filled;      /* bytes of data that have come in order */
    struct ranges others; /* data that has come out of order */
    uint32_t error;       /* of the reply, a value of the protocol; 0: none */
    int failure;          /* a negative errno: it has got no reply */
    uint64_t told;        /* the number of the failure that has the reason */
};

/* Write the header of a request; returns its size. */
size_t request_header(const struct nbd_request *request, bool extended, char *header);

/* Return the memory for a range of the data of a READ, each of which may come once. NULL: the server may not send it,
   and *why says so. */
char *request_place(struct nbd_request *request, uint64_t offset, uint64_t length, const char **why);

/* Whether a reply has all that it has to have, or an error. */
bool request_is_complete(const struct nbd_request *request);

/* Whether it changes the image. */
bool request_is_change(const struct nbd_request *request);

/* Whether a server has refused it because it is longer than the maximum, `most` (proto.md, "Block size constraints"):
   it is asked for again in shorter ones. */
bool request_was_too_long(const struct nbd_request *request, uint64_t most);

/* Whether its error says that something has not come to stable storage, which may be what was written before. Whether
   something is lost because the server is gone is known when it is back. */
bool request_fails_flushes(const struct nbd_request *request, uint64_t most);

/* Set the error of a reply; the first one stays. Values that are not known become EINVAL. */
void request_refused(struct nbd_request *request, uint32_t error);

/* ---- block status ----------------------------------------------------------------------------------------------- */

/* What one context tells. */
struct told {
    uint32_t id;
    bool answered;
    uint32_t count;
    uint64_t tells;   /* of the context */
    uint64_t means;   /* the flag of a record that has what it tells */
    uint64_t end;     /* where the last extent ends */
    iou_extent *runs; /* of extents that tell the same; NULL: it is not wanted */
};

/* What is told of a range, from its start, in several contexts, at most `most` runs in each. */
struct status {
    uint64_t start;
    uint32_t most, count;
    struct told told[];
};

/* Most bytes for what is told in an answer, of all contexts together. */
#define STATUS_MEMORY (4u << 20)

#define ALL_BITMAPS (~(uint64_t)(IOU_EXTENT_ZERO | IOU_EXTENT_HOLE))

/* Make memory for an answer, of which the contexts are wanted that have a flag of `tells`. apart: a record has a flag
   for each bitmap; otherwise IOU_EXTENT_DIRTY is what any of them marks. At most `most` runs of each are kept, and at
   most STATUS_MEMORY bytes. place: of the records that the answer becomes; if one context is wanted, its runs are put
   there. NULL: there is no memory. */
struct status *status_new(const struct contexts *contexts, uint64_t tells, bool apart, uint64_t start,
                          iou_extent *place, uint32_t most);

/* Return which of that the contexts tell. */
uint64_t contexts_tell(const struct contexts *contexts, uint64_t tells);

/* Find a context that was negotiated and not answered yet. NULL: there is none. */
struct told *status_find(struct status *status, uint32_t id);

/* Add an extent to what a context tells. False: it cannot be. */
bool status_add(struct status *status, struct told *told, uint64_t length, uint64_t flags);

/* Fill records, those of status_new(), with what all contexts tell of start..end, as far as all of them go, at most
   max; returns how many, or -EPROTO: one has told nothing of it. Neighbours that tell the same are one. */
int64_t status_merge(const struct status *status, uint64_t start, uint64_t end, iou_extent *extents, uint64_t max);

#endif
