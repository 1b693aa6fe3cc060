/* SPDX-License-Identifier: Apache-2.0 */

/* Plain requests, which lanes serve, and the JSON of a PATCH (plain.c). They need no lane. */

#ifndef IOUTIL_HTTP_PLAIN_H
#define IOUTIL_HTTP_PLAIN_H

#include "base/numbers.h"
#include "http/head.h"

/* Most bytes of a plain head: enough for some fields and one ticket id. Python serves a request with a longer head. */
#define HTTP_MAX_HEAD (4 * KIB)

/* Most bytes of the JSON of a PATCH. Programs send less than 100. */
#define HTTP_MAX_PATCH KIB

/* Most bytes that are received before a head is complete: enough for a head, and for a whole request with 4 KiB of
   data. */
#define HTTP_ROOM (8 * KIB)

_Static_assert(HTTP_ROOM > HTTP_MAX_HEAD + HTTP_MAX_PATCH, "a request that is staged whole");

enum http_method { HTTP_GET, HTTP_PUT, HTTP_PATCH };

/* The part that a GET requests: the whole image, a range, or all bytes from an offset on. */
enum http_part { HTTP_ALL, HTTP_SPAN, HTTP_REST };

/* HTTP_OTHER means that the request is not for a lane, and HTTP_MORE that it is not complete, so that this is not known
   yet. */
enum http_found { HTTP_OTHER, HTTP_MORE, HTTP_WHOLE };

struct http_plain {
    enum http_method method;
    struct http_text path;
    enum http_part part;
    bool flush;           /* PUT: with a flush at the end */
    bool expects;         /* PUT: the client waits for 100 Continue (RFC 9110 10.1.1) */
    bool encoded;         /* PUT: the body is a frame of zstd (RFC 8878) */
    uint32_t asks;        /* iou_asks */
    uint32_t size;        /* bytes of the head */
    uint64_t length;      /* bytes of the body */
    uint64_t first, last; /* GET: the range, of HTTP_REST only first; its last may be past the image. PUT: first is the
                             offset, and with encoded, last the last byte */
};

/* Return whether the request is plain: a lane for the image of the path would serve it. */
bool http_read_plain(const struct http_head *head, struct http_plain *plain);

/* Find a plain request at the start of the data. `target` is the path of the lane's image. */
enum http_found http_find_plain(struct http_text data, struct http_text target, struct http_plain *plain);

struct http_patch {
    bool is_flush; /* op is flush, without other keys; otherwise op is zero */
    bool flush, fast;
    uint64_t offset, size;
};

/* Parse the JSON of a PATCH. Returns false if it is not a zero or a flush in the form that programs send. */
bool http_parse_patch(struct http_text body, struct http_patch *patch);

#endif
