/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The framing of HTTP requests (RFC 9112): heads, and chunked bodies. cffi's cdef() reads this after api/ioutil.h,
 * whose conventions apply. These functions do not wait and have no state of their own: a forked child may call them.
 */

#ifndef IOUTIL_API_HEAD_H
#define IOUTIL_API_HEAD_H

#include <stdint.h>

/* ---- heads ------------------------------------------------------------------------------------------------------ */

enum {
    IOU_HEAD_MAX = 16384,     /* bytes; the largest useful head has a path and a query of 2 KiB, and some fields */
    IOU_HEAD_MAX_FIELDS = 100 /* fewer than the 128 that aiohttp accepts; browsers send about 20 */
};

/* The state of a head, or the reason why it is refused. */
typedef enum {
    IOU_HEAD_WHOLE = 0,
    IOU_HEAD_MORE,         /* the head is not complete yet */
    IOU_HEAD_TOO_LONG,     /* the head is not complete within IOU_HEAD_MAX bytes */
    IOU_HEAD_LINE_END,     /* a line of an incomplete head does not end with CRLF, so it may never become complete */
    IOU_HEAD_REQUEST_LINE, /* the request line is invalid (RFC 9112 3) */
    IOU_HEAD_FIELDS,       /* more than IOU_HEAD_MAX_FIELDS fields */
    IOU_HEAD_FIELD,        /* a field line is invalid (RFC 9112 5) */
    IOU_HEAD_TWICE,        /* a field occurs twice, and programs differ in which value they use */
    IOU_HEAD_NO_HOST,      /* no Host field (RFC 9112 3.2) */
    IOU_HEAD_LENGTH,       /* Content-Length is not a number of at most 18 digits */
    IOU_HEAD_LENGTHS,      /* both Content-Length and Transfer-Encoding (RFC 9112 6.3) */
    IOU_HEAD_CODING        /* a transfer coding other than chunked, or any in HTTP/1.0 */
} iou_head_result;

typedef enum {
    IOU_HEAD_CHUNKED = 1,
    IOU_HEAD_KEEP_ALIVE = 2, /* the connection stays open: another request may follow */
    IOU_HEAD_PLAIN = 4       /* a lane for the image of the target can serve it, if image and ticket allow that */
} iou_head_flag;

/* What a request asks of its answer. Answers of C and of Python depend on it. */
typedef enum {
    IOU_ASKS_ORIGIN = 1, /* a page of another origin has to be allowed to read it: the request has an Origin field */
    IOU_ASKS_JSON = 2    /* an error as a JSON document: an Accept field names application/json */
} iou_asks;

typedef struct {
    uint32_t size;          /* bytes of the head */
    uint32_t method_length; /* the method begins the head; after it come one blank and the target */
    uint32_t target_length;
    uint32_t minor;    /* HTTP/1.minor */
    uint32_t flags;    /* iou_head_flag */
    uint32_t asks;     /* iou_asks */
    uint64_t length;   /* bytes of the body, unless it is chunked; below 10^18 */
    const char *field; /* IOU_HEAD_TWICE: the name of the field, in lower case; static text */
} iou_head;

/*
 * Read the head at the start of the data. Pass in `searched` for how many of its bytes an earlier call has returned
 * IOU_HEAD_MORE. Returns an iou_head_result. IOU_HEAD_WHOLE fills all of *head, and IOU_HEAD_TWICE its `field`.
 */
int iou_head_read(const void *data, uint64_t length, uint64_t searched, iou_head *head);

/* ---- bodies in chunks ------------------------------------------------------------------------------------------- */

enum {
    IOU_CHUNKS_MAX_LINE = 256,    /* bytes of a chunk's size with its extension, or of a trailer field; with the CRLF */
    IOU_CHUNKS_MAX_TRAILER = 4096 /* bytes of the fields after the last chunk; they are discarded */
};

/* The reason why a chunked body is refused (RFC 9112 7.1). */
typedef enum {
    IOU_CHUNKS_LINE = 1, /* a line is longer than IOU_CHUNKS_MAX_LINE */
    IOU_CHUNKS_LINE_END, /* a line does not end with CRLF */
    IOU_CHUNKS_SIZE,     /* a chunk size is not a number of at most 15 digits, or is not followed by an extension */
    IOU_CHUNKS_END,      /* the data of a chunk does not end where its size says */
    IOU_CHUNKS_TRAILER,  /* the trailer is longer than IOU_CHUNKS_MAX_TRAILER */
    IOU_CHUNKS_FIELD     /* a line of the trailer is not a field */
} iou_chunks_refusal;

/* The state of the reader of one body. All 0 before the first byte. */
typedef struct {
    uint64_t left;                  /* bytes of the chunk's data that have not arrived yet */
    uint32_t part;                  /* kind of the next line */
    uint32_t line;                  /* bytes of the present line that have arrived */
    uint32_t trailer;               /* bytes of the trailer that have arrived */
    uint32_t ended;                 /* the whole body was read */
    char text[IOU_CHUNKS_MAX_LINE]; /* the bytes of the present line */
} iou_chunks;

/*
 * Read a part of a body. Returns how many bytes of the data belong to the body, or a negated iou_chunks_refusal. After
 * a refusal, or if another function has written to *chunks, further results are undefined.
 */
int64_t iou_chunks_read(iou_chunks *chunks, const void *data, uint64_t length);

/*
 * Do the same, and move the data of the chunks together, to the start of the memory. Returns how many bytes of data
 * there are, and stores in *taken how many bytes belong to the body.
 */
int64_t iou_chunks_unframe(iou_chunks *chunks, void *data, uint64_t length, uint64_t *taken);

#endif
