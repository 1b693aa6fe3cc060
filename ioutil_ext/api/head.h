/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Where HTTP requests begin and end (RFC 9112): heads, and bodies in chunks. Read by cffi's cdef() after api/ioutil.h;
 * the same conventions. Nothing here waits, or keeps anything: it may be called in a forked child, too.
 */

#ifndef IOUTIL_API_HEAD_H
#define IOUTIL_API_HEAD_H

#include <stdint.h>

/* ---- heads ------------------------------------------------------------------------------------------------------ */

enum {
    IOU_HEAD_MAX = 16384, /* bytes of a head: the largest useful one is a path and a query of 2 KiB and some fields */
    IOU_HEAD_MAX_FIELDS = 100 /* fewer than the 128 that aiohttp takes; browsers send twenty */
};

/* What a head is, or why it is refused. */
typedef enum {
    IOU_HEAD_WHOLE = 0,
    IOU_HEAD_MORE,         /* its end has not come yet */
    IOU_HEAD_TOO_LONG,     /* and has not come in IOU_HEAD_MAX bytes */
    IOU_HEAD_LINE_END,     /* and a line does not end with CRLF, so that it might never come */
    IOU_HEAD_REQUEST_LINE, /* is none */
    IOU_HEAD_FIELDS,       /* are more than IOU_HEAD_MAX_FIELDS */
    IOU_HEAD_FIELD,        /* a line is none */
    IOU_HEAD_TWICE,        /* a field stands twice that different programs then read differently */
    IOU_HEAD_NO_HOST,
    IOU_HEAD_LENGTH,  /* Content-Length is no number of at most 18 digits */
    IOU_HEAD_LENGTHS, /* both Content-Length and Transfer-Encoding */
    IOU_HEAD_CODING   /* another transfer coding than chunked, or one in HTTP/1.0 */
} iou_head_result;

typedef enum {
    IOU_HEAD_CHUNKED = 1,
    IOU_HEAD_KEEP_ALIVE = 2, /* another request may follow: neither side has a reason to close */
    IOU_HEAD_PLAIN = 4       /* a lane of the image of its target would serve it, if image and ticket allow that */
} iou_head_flag;

typedef struct {
    uint32_t size;          /* bytes of the head */
    uint32_t method_length; /* it begins the head; then one blank, and the target */
    uint32_t target_length;
    uint32_t minor; /* HTTP/1.minor */
    uint32_t flags; /* iou_head_flag */
    uint32_t reserved;
    uint64_t length;   /* of the body, unless it is chunked; below 10^18 */
    const char *field; /* TWICE: its name, in lower case; never freed */
} iou_head;

/*
 * Read the head that the data begins with. searched: bytes of the data of which it was said before that there is MORE.
 * head: all of it when it is WHOLE, `field` when it is TWICE. Returns an iou_head_result.
 */
int iou_head_read(const void *data, uint64_t length, uint64_t searched, iou_head *head);

/* ---- bodies in chunks ------------------------------------------------------------------------------------------- */

enum {
    IOU_CHUNKS_MAX_LINE =
        256, /* bytes between chunks, with the CRLF: digits and an extension that nobody uses, or a field */
    IOU_CHUNKS_MAX_TRAILER = 4096 /* bytes of fields behind the last chunk; they are thrown away */
};

/* Why a body is refused. */
typedef enum {
    IOU_CHUNKS_LINE = 1, /* is longer than IOU_CHUNKS_MAX_LINE */
    IOU_CHUNKS_LINE_END, /* is not CRLF */
    IOU_CHUNKS_SIZE,     /* is no number of at most 15 digits, or what is behind it no extension */
    IOU_CHUNKS_END,      /* of a chunk is not where its size says */
    IOU_CHUNKS_TRAILER,  /* is longer than IOU_CHUNKS_MAX_TRAILER */
    IOU_CHUNKS_FIELD     /* of the trailer is none */
} iou_chunks_refusal;

/* How far a body was read; all 0: not at all. */
typedef struct {
    uint64_t left;                  /* bytes of the chunk's data that are still to come */
    uint32_t part;                  /* what the next line is */
    uint32_t line;                  /* bytes of it that have come */
    uint32_t trailer;               /* bytes of the trailer that have come */
    uint32_t ended;                 /* all of the body was read */
    char text[IOU_CHUNKS_MAX_LINE]; /* of the line */
} iou_chunks;

/*
 * Return how many bytes of the data belong to the body, or an iou_chunks_refusal, negated; after that, or if chunks
 * holds what was not written by this function, all that follows means nothing.
 */
int64_t iou_chunks_read(iou_chunks *chunks, const void *data, uint64_t length);

#endif
