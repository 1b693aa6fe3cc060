/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The parser of a server's replies (replies.c, chunks.c, payloads.c). It is given bytes, and calls the owner of the
 * requests when one ends. It does no I/O. Data of a READ is received directly into the memory of its request, and a
 * server cannot make it write anywhere else.
 */

#ifndef IOUTIL_NBD_CLIENT_REPLIES_H
#define IOUTIL_NBD_CLIENT_REPLIES_H

#include <sys/uio.h>

#include "base/numbers.h"
#include "nbd_client/request.h"

/* Bytes of memory for heads and short payloads. */
#define STAGING (64 * KIB)

/* The functions of the owner of the requests. */
struct requests {
    /* Return the request that waits for the reply with this cookie, or NULL if there is none. */
    struct nbd_request *(*find)(struct requests *requests, uint64_t cookie);

    /* Note that the server has refused a request, with this text. The request's error is set. */
    void (*refused)(struct requests *requests, struct nbd_request *request, const char *text, size_t length);

    /* Note that the reply to a request is complete. The parser does not use the request after that. Return NULL, or why
       the reply is invalid. */
    const char *(*ended)(struct requests *requests, struct nbd_request *request);
};

/* The kind of the next bytes. */
enum expected { REPLY_HEAD, REPLY_DATA, REPLY_PAYLOAD, REPLY_EXTENTS };

struct replies {
    struct requests *requests;
    const struct agreed *agreed;
    char *staging; /* for heads and short payloads */
    uint32_t start, end;
    uint32_t window; /* most bytes that are received into it at once */
    enum expected expected;
    struct nbd_request *request; /* the request of this reply; the members below are about the reply */
    uint16_t type;               /* type of the chunk */
    bool done;                   /* the chunk, or the reply, is the last one */
    uint64_t left;               /* bytes of the payload */
    char *place;                 /* REPLY_DATA: where to put them */
    struct told *told;           /* REPLY_EXTENTS: their context */
};

/* Return 0 or -ENOMEM. */
int replies_init(struct replies *replies, struct requests *requests, const struct agreed *agreed);
void replies_free(struct replies *replies);

/* Return how many parts of memory the next bytes are to be received into, 1 or 2, and fill in these parts. */
unsigned replies_space(struct replies *replies, struct iovec *parts);

/* Take `count` bytes that were received into these parts. Returns NULL, or how the server has violated the protocol. */
const char *replies_received(struct replies *replies, size_t count);

/* ---- chunks.c --------------------------------------------------------------------------------------------------- */

/* Begin with a chunk whose head was read, then take its bytes from the staging. Both return as replies_received() does.
   chunk_take() sets *more to false if a part has not arrived yet. */
const char *chunk_begin(struct replies *replies);
const char *chunk_take(struct replies *replies, bool *more);

/* ---- payloads.c ------------------------------------------------------------------------------------------------- */

/* Let the next bytes be the data of a READ. Returns NULL, or why the server may not send it. */
const char *replies_data(struct replies *replies, uint64_t offset, uint64_t length);

/* Note that the payload, or the whole reply, has arrived. */
const char *replies_payload_ended(struct replies *replies);
const char *replies_request_ended(struct replies *replies);

#endif
