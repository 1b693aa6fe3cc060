/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What peers send, as a fuzzer makes it up: targets, each of which takes any bytes and aborts at what must not be. The
 * program knows by its own name which one it is.
 */

#ifndef FUZZ_H
#define FUZZ_H

#define _GNU_SOURCE
#include <openssl/ssl.h>

#include "http/http.h"
#include "stress.h"

/* ---- targets ---------------------------------------------------------------------------------------------------- */

struct target {
    const char *name;
    void (*begin)(void); /* before the first input; NULL: nothing is to be done */
    void (*run)(const char *data, size_t size);
};

extern const struct target http_head_target, http_chunks_target, http_patch_target, nbd_wire_target, http_lane_target,
    http_instruction_target, nbd_lane_target, nbd_client_target, tls_target, zstd_target, qcow2_target;

/* ---- bytes.c: input, and bytes that are collected --------------------------------------------------------------- */

/* What is left of an input. */
struct input {
    const char *at, *end;
};

/* 0 where nothing is left. */
unsigned take_byte(struct input *input);

struct bytes {
    char *data;
    size_t length, size;
};

void bytes_add(struct bytes *bytes, const void *data, size_t length);
void bytes_free(struct bytes *bytes);

/*
 * The rest of an input as a stream: 0xff, a and b are (a * 256 + b) * 64 bytes of a pattern, so that a short input has
 * long payloads; two zeros there are 0xff itself. No longer than most.
 */
void expand(struct input input, struct bytes *stream, size_t most);

/* ---- httplane.c ------------------------------------------------------------------------------------------------- */

/* Decode a frame of zstd to where its content goes. False: it is refused, and a part of it may be there. */
bool decode_frame(struct http_text body, char *where, uint64_t length);

/* ---- peer.c: a lane with all that it needs, and its client ------------------------------------------------------ */

#define IDLE_NS (900 * UINT64_C(1000000)) /* less than what a lane waits for a request */

struct peer {
    struct bytes stream;   /* what the client sends */
    struct bytes received; /* what it was answered */
    uint64_t random;       /* how the stream is cut; 0: not at all */
    bool secure;           /* by TLS */
    size_t sent;           /* of the stream */
    unsigned pieces;
    size_t piece; /* that is being sent: what is left of it */

    /* Look at what was received, and tell how much of the stream may be sent, and whether all answers are there. */
    size_t (*look)(struct peer *peer, bool *complete);
    void *own; /* of look() */

    iou_lane *lane;
    iou_handle *handle;
    iou_control control;
    iou_lease lease;
    int fd, lanes_fd, owners_fd;
    iou_tls *ends[2]; /* of the server and the client */
    bool said_all, faulty;
    uint64_t began;
};

/* Once. */
void peers_begin(void);
extern iou_lanes *all_lanes;

/* Make an image of this size, of data and holes, and a connection. */
void peer_open(struct peer *peer, uint64_t image_size, bool writable);

/* Let one call of storage fail, after so many. */
void peer_break_storage(struct peer *peer, unsigned calls);

/* rest: bytes of the stream that the lane is given at its beginning. */
iou_lane_options peer_options(struct peer *peer, uint32_t flags, uint64_t size, size_t rest);

/* Send, receive and look until the lane has ended. */
void peer_serve(struct peer *peer);

/* End the lane, which serves HTTP, and append what it, its socket and the client have left of the stream. */
void peer_end_http(struct peer *peer, iou_http_end *end, struct bytes *unread);

/* Whether the machine was too busy for the lane's patience: then nothing can be said of what was not answered. */
bool peer_was_slow(const struct peer *peer);

/* What an image of this size is at first, with zeros behind it. */
void peer_copy_fresh(char *content, uint64_t size, uint64_t image_size);

/* What the image holds now. */
const char *peer_image(uint64_t *size);
void peer_close(struct peer *peer);

/* ---- nbdreplies.c ----------------------------------------------------------------------------------------------- */

/* A request that is answered, and what was answered of it. */
struct asked {
    struct request request;
    const char *payload;
    size_t end; /* in the stream */
    uint64_t read;
    uint32_t told; /* contexts of a BLOCK_STATUS */
    bool answered;
    uint32_t error;
};

struct exchange {
    struct dialect dialect;
    iou_lane_context contexts[3]; /* base:allocation, and bitmaps, which mark nothing */
    uint32_t contexts_count;
    struct asked *asked; /* by their cookies */
    unsigned count, answered;
    size_t looked_at; /* of what was received */
    bool in_order;    /* each is sent when the one before was answered */
    bool certain;     /* content is known */
    bool faulty;      /* storage is */
    char *model;      /* the content then */
};

/* Look at whole replies. Returns how many requests were answered by them. */
unsigned look_at_replies(struct exchange *exchange, const struct bytes *received);

#endif
