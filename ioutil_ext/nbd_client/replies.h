/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The parser of what a server sends (replies.c, chunks.c, payloads.c): bytes in, ends of requests out. It does no I/O.
 * Data of a READ is received into the memory of its request: a server cannot make it write anywhere else.
 */

#ifndef IOUTIL_NBD_CLIENT_REPLIES_H
#define IOUTIL_NBD_CLIENT_REPLIES_H

#include <sys/uio.h>

#include "base/numbers.h"
#include "nbd_client/request.h"

/* Bytes of memory for heads and short payloads. */
#define STAGING (64 * KIB)

/* Who has the requests. */
struct requests {
    /* Find a request that waits for its reply, by its cookie. NULL: there is none. */
    struct nbd_request *(*find)(struct requests *requests, uint64_t cookie);

    /* The server has refused a request, with this text; its error is set. */
    void (*refused)(struct requests *requests, struct nbd_request *request, const char *text, size_t length);

    /* The reply to a request is complete, and the request may be gone after that. NULL, or why it cannot be. */
    const char *(*ended)(struct requests *requests, struct nbd_request *request);
};

/* What the next bytes are. */
enum expected { REPLY_HEAD, REPLY_DATA, REPLY_PAYLOAD, REPLY_EXTENTS };

struct replies {
    struct requests *requests;
    const struct agreed *agreed;
    char *staging; /* for heads and what is short */
    uint32_t start, end;
    uint32_t window; /* most bytes that are received into it at once */
    enum expected expected;
    struct nbd_request *request; /* the rest is of the reply to a request */
    uint16_t type;               /* of its chunk */
    bool done;                   /* the chunk, or the reply, is the last one */
    uint64_t left;               /* bytes of the payload */
    char *place;                 /* REPLY_DATA: where they go to */
    struct told *told;           /* REPLY_EXTENTS: the context that they are of */
};

/* -ENOMEM. */
int replies_init(struct replies *replies, struct requests *requests, const struct agreed *agreed);
void replies_free(struct replies *replies);

/* Return how many parts of memory the next bytes are received into, 1 or 2. */
unsigned replies_space(struct replies *replies, struct iovec *parts);

/* Take count bytes that were received into them. NULL, or how the server has violated the protocol. */
const char *replies_received(struct replies *replies, size_t count);

/* ---- chunks.c --------------------------------------------------------------------------------------------------- */

/* Begin with a chunk whose head was read, and take what it has from the staging. As replies_received(). *more: false: a
   part is not there yet. */
const char *chunk_begin(struct replies *replies);
const char *chunk_take(struct replies *replies, bool *more);

/* ---- payloads.c ------------------------------------------------------------------------------------------------- */

/* Let the next bytes be the data of a READ. NULL, or why the server may not send it. */
const char *replies_data(struct replies *replies, uint64_t offset, uint64_t length);

/* The payload, or the whole reply, has come. */
const char *replies_payload_ended(struct replies *replies);
const char *replies_request_ended(struct replies *replies);

#endif
