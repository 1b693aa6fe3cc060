/* SPDX-License-Identifier: Apache-2.0 */

/* A client of a lane that knows what each byte of its part of the image must be. */

#ifndef LANECLIENT_H
#define LANECLIENT_H

#include "stress.h"

#define AREAS 80 /* more than a lane has threads */
#define MOST_IN_FLIGHT 96

/* Reads as zeros beyond what is written; no request may pass it. */
#define EXPORT_SIZE ((uint64_t)1 << 40)

/* Of lanes whose client stops to make progress, and of the others, which never need it. */
#define SHORT_TIMEOUT_MS 200u
#define LONG_TIMEOUT_MS 50000u

/* How a connection ends: by what the client does, and, from ABORT on, by what its owner does. */
enum ending {
    LEAVE,      /* says goodbye while requests run */
    HALF_CLOSE, /* has nothing more to say */
    CUT,        /* and that in the middle of a request */
    GARBAGE,    /* sends what is no request */
    OVERSIZE,   /* a payload that is too long to be read, made of requests */
    RESET,      /* neither sends nor receives any more */
    STALL,      /* does not receive */
    HOLD,       /* does not send the rest of a request */
    ABORT,
    REFUSE,
    CANCEL,
    EXPIRE,
    STOP /* of the engine */
};

/* A part of the image that this client alone changes, with one request at a time. */
struct area {
    uint64_t offset, length, seed;
    int content;
    bool busy;
    bool counted;  /* a write or zero of it has succeeded on this connection */
    uint64_t told; /* bytes of it that the lane has told to be written */
};

/* A request without its final reply. */
struct sent {
    bool busy;
    uint16_t command, flags;
    uint64_t cookie, offset, length, seed;
    struct area *area; /* NULL: of no area */
    uint32_t expected; /* error of a bad request */
    char *data;        /* of a READ */
    uint64_t got;
};

struct lane_client {
    /* Of all connections. */
    uint64_t random;
    struct area areas[AREAS];
    uint64_t replies[COMMANDS + 1], failed, shut_down;

    /* Of this one. */
    int fd;
    uint32_t flags; /* iou_lane_flag */
    bool remote;    /* a server has the image, which fails at anything, and may make a change late */
    enum ending ending;
    uint64_t requests; /* to send */
    unsigned most;     /* in flight */
    uint64_t receiver_random;
    atomic_uint_fast64_t count;
    atomic_bool sent_all;
    pthread_t sender, receiver;
    char out[16 * 1024]; /* to be sent */
    size_t out_length;

    pthread_mutex_t lock; /* of sent and areas */
    pthread_cond_t answered;
    struct sent sent[MOST_IN_FLIGHT];
    unsigned in_flight;
    bool closed;
};

/* Once, before the first connection. Returns where the areas end. */
uint64_t client_lay_out(struct lane_client *client, uint64_t offset, uint64_t seed);

/* Choose how to behave. */
void client_prepare(struct lane_client *client, enum ending ending);
void client_start(struct lane_client *client);

/* After the lane has ended. Looks for requests that should have been answered, and forgets the connection. */
void client_join(struct lane_client *client);

/* Note that the lane tells a range to be written. */
void client_told(struct lane_client *client, uint64_t start, uint64_t end);

/* ---- lanemodel.c: bytes ----------------------------------------------------------------------------------------- */

enum { UNKNOWN, ZEROS, PATTERN };

/* Random bytes, some of them with holes of whole pieces. */
void pattern_fill(char *data, uint64_t length, uint64_t seed);
bool area_holds(const struct area *area, const char *data);

/* ---- lanerequests.c --------------------------------------------------------------------------------------------- */

bool is_write(unsigned command);
bool has_chunks(const struct lane_client *client);

/* The lock is held. One that is not busy. */
struct area *choose_area(struct lane_client *client);

/* Any request, good or bad. The lock is held. */
void choose_request(struct lane_client *client, struct sent *request);

/* Write its header; returns the size. */
size_t put_header(const struct lane_client *client, char *header, const struct sent *request);

/* ---- lanereplies.c ---------------------------------------------------------------------------------------------- */

/* The thread that receives. */
void *client_receive(void *argument);

/* ---- lanestorage.c ---------------------------------------------------------------------------------------------- */

/* System calls that fail, wait and, now and then, all stand still for so long that a lane needs more threads. */
extern const iou_syscalls bad_syscalls;

/* ---- laneowner.c ------------------------------------------------------------------------------------------------ */

/* A connection, and who owns its lane. */
struct session {
    struct lane_client client;
    iou_lane *lane;     /* NULL: none now */
    iou_handle *shared; /* the image, if a server has it */
    iou_handle *handle; /* NULL: it was closed, and is the lane's only; or shared */
    iou_control control;
    iou_lease lease;
    iou_bucket *bucket;          /* NULL: no limit on the rate */
    uint64_t started, act_after; /* so many requests, and the owner ends it */
    bool acted;
    const char *path;
    uint64_t gap; /* offset of what the engine changes, behind the client's areas */
    uint64_t random;
    uint64_t served, reports, ranges;
};

void session_start(struct session *session, iou_lanes *lanes, iou_queue *queue, enum ending ending);

/* Do what an owner does, and end the session when the lane has ended. */
void session_look_after(struct session *session);

#endif
