/* SPDX-License-Identifier: Apache-2.0 */

/* Plain requests (plain.c), and the JSON of a PATCH (patch.c): what lanes serve. No lane is needed. */

#ifndef IOUTIL_HTTP_PLAIN_H
#define IOUTIL_HTTP_PLAIN_H

#include "base/numbers.h"
#include "http/head.h"

/* A lane waits for so much of a head: some fields, one ticket id. A longer one is somebody else's. */
#define HTTP_MAX_HEAD (4 * KIB)

/* The JSON of a PATCH. Programs send less than 100 bytes. */
#define HTTP_MAX_PATCH KIB

/* What is received at once while there is no head: a head, and all of a request with 4 KiB of data. */
#define HTTP_ROOM (8 * KIB)

_Static_assert(HTTP_ROOM > HTTP_MAX_HEAD + HTTP_MAX_PATCH, "a request that is staged whole");

enum http_method { HTTP_GET, HTTP_PUT, HTTP_PATCH };

/* What a GET asks for: the whole image, a range of it, or all from a byte on. */
enum http_part { HTTP_ALL, HTTP_SPAN, HTTP_REST };

/* OTHER: it is not for a lane; MORE: nobody knows yet. */
enum http_found { HTTP_OTHER, HTTP_MORE, HTTP_WHOLE };

struct http_plain {
    enum http_method method;
    struct http_text path;
    enum http_part part;
    bool flush;           /* PUT: put it on stable storage */
    bool expects;         /* PUT: its body comes when it is told to (RFC 9110 10.1.1) */
    bool has_origin;      /* it comes from a page of another origin */
    uint32_t size;        /* bytes of the head */
    uint64_t length;      /* of the body */
    uint64_t first, last; /* GET: the range; of HTTP_REST its beginning; PUT: where it begins */
};

/* Whether a lane of the image that the path names would serve it. */
bool http_read_plain(const struct http_head *head, struct http_plain *plain);

/* Find a plain request at the beginning of the data. target: the path of the image that is served. */
enum http_found http_find_plain(struct http_text data, struct http_text target, struct http_plain *plain);

struct http_patch {
    bool is_flush; /* and nothing else */
    bool flush, fast;
    uint64_t offset, size;
};

/* False: it says something else, or in another way. */
bool http_parse_patch(struct http_text body, struct http_patch *patch);

#endif
