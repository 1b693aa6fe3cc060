/* SPDX-License-Identifier: Apache-2.0 */

/* A request to a server, and the status of a range from its replies. They need no connection (request.c, status.c). */

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

/* The results of the negotiation. */
struct agreed {
    uint32_t flags;
    bool structured, extended;
    uint64_t most; /* bytes of a request's data */
};

/* The contexts that were selected on a connection. */
struct contexts {
    uint32_t count;
    iou_nbd_context list[IOU_NBD_CONTEXTS];
};

struct calls;

/* A request. It is in a queue until it is sent, and has a cookie until its reply is complete. */
struct nbd_request {
    struct link link;
    struct calls *calls; /* the waiter for its end */
    uint16_t command, flags;
    uint64_t offset, length;
    char *memory;          /* to be filled with the data of a READ, or the data of a WRITE */
    struct status *status; /* for BLOCK_STATUS */
    uint64_t counts;       /* bytes by which it advances its operation */
    uint64_t cookie;
    uint64_t unsent;      /* bytes that are not sent yet, once it has been begun */
    bool answered;        /* its reply was complete before it was known to be sent */
    uint64_t filled;      /* bytes of data that have arrived in order */
    struct ranges others; /* data that has arrived out of order */
    uint32_t error;       /* the error in the reply, a value of the protocol, or 0 */
    int failure;          /* a negative errno if it gets no reply */
    uint64_t told;        /* the number of the failure with the reason */
};

/* Write the header of a request. Returns its size. */
size_t request_header(const struct nbd_request *request, bool extended, char *header);

/* Return the memory for a range of the data of a READ. Each range may arrive once. If the server may not send it,
   returns NULL and sets *why. */
char *request_place(struct nbd_request *request, uint64_t offset, uint64_t length, const char **why);

/* Return whether a reply has everything that it must have, or an error. */
bool request_is_complete(const struct nbd_request *request);

/* Return whether a request changes the image. */
bool request_is_change(const struct nbd_request *request);

/* Return whether a server has refused a request because it is longer than the maximum, `most` (proto.md, "Block size
   constraints"). Then it is sent again as several shorter ones. */
bool request_was_too_long(const struct nbd_request *request, uint64_t most);

/* Return whether its error means that some data, which may be that of earlier writes, has not reached stable storage.
   If the server is gone, this is known only when it is back. */
bool request_fails_flushes(const struct nbd_request *request, uint64_t most);

/* Set the error of a reply, if it has none yet. Unknown values become EINVAL. */
void request_refused(struct nbd_request *request, uint32_t error);

/* ---- block status ----------------------------------------------------------------------------------------------- */

/* The extents in one context. */
struct told {
    uint32_t id;
    bool answered;
    uint32_t count;
    uint64_t tells;   /* the flag of the context */
    uint64_t means;   /* the flag that a record gets for it */
    uint64_t end;     /* where the last extent ends */
    iou_extent *runs; /* equal extents in one; NULL if the context is not wanted */
};

/* The status of a range, from its start, in several contexts, with at most `most` runs in each. */
struct status {
    uint64_t start;
    uint32_t most, count;
    struct told told[];
};

/* Most bytes for the runs of an answer, of all contexts together. */
#define STATUS_MEMORY (4u << 20)

#define ALL_BITMAPS (~(uint64_t)(IOU_EXTENT_ZERO | IOU_EXTENT_HOLE))

/*
 * Make memory for an answer with the contexts that have a flag of `tells`. With `apart` a record has a flag for each
 * bitmap; otherwise IOU_EXTENT_DIRTY stands for the marks of all of them. At most `most` runs of each context are kept,
 * and at most STATUS_MEMORY bytes. `place` is where the records of the answer will be; if only one context is wanted,
 * its runs are put there. Returns NULL without memory.
 */
struct status *status_new(const struct contexts *contexts, uint64_t tells, bool apart, uint64_t start,
                          iou_extent *place, uint32_t most);

/* Return which flags of `tells` the contexts report. */
uint64_t contexts_tell(const struct contexts *contexts, uint64_t tells);

/* Find a context that was negotiated and not answered yet. Returns NULL if there is none. */
struct told *status_find(struct status *status, uint32_t id);

/* Add an extent to a context. Returns false if it is invalid. */
bool status_add(struct status *status, struct told *told, uint64_t length, uint64_t flags);

/*
 * Fill the records of status_new() with the status of start..end in all contexts, as far as all of them go, at most
 * `max` records. Adjacent equal extents become one record. Returns how many, or -EPROTO if a context has no extent of
 * the range.
 */
int64_t status_merge(const struct status *status, uint64_t start, uint64_t end, iou_extent *extents, uint64_t max);

#endif
