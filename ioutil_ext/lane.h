/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The parts of a lane: memory (lane_memory.c), the socket (lane_socket.c), messages (lane_wire.c), requests
 * (lane_requests.c), operations (lane_operations.c), replies (lane_replies.c), what is told of it (lane_counts.c),
 * threads and their turns (lane_turns.c), beginning and end (lane.c).
 */

#ifndef IOUTIL_LANE_H
#define IOUTIL_LANE_H

#include <semaphore.h>
#include <sys/uio.h>

#include "engine.h"
#include "lane_api.h"

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* A payload of at most this is written when it is there as a whole (docs/nbd.md); a longer one in pieces. */
#define WRITE_PIECE (4 * MIB)

/* Reads are cut into pieces of this, where that is allowed. qemu-img's are not longer. */
#define READ_PIECE (2 * MIB)

/* Page-aligned memory. */
struct memory {
    struct memory *next;
    char *data;
    size_t size;
};

#define MEMORY_CLASSES 5

/* A file system or block device, and what requests to it have of the memory: one that hangs must not have all. */
struct borrower {
    struct borrower *next;
    uint64_t device, lent;
    uint32_t lanes;
};

struct iou_lanes {
    struct iou_engine *engine;
    uint32_t born; /* fork generation; a lane may outlive the engine */
    pthread_mutex_t lock;
    pthread_cond_t freed;
    struct borrower *borrowers;
    uint64_t limit, used; /* of pieces */
    uint64_t long_limit;
    bool long_taken;
    uint64_t kept;                       /* bytes in free; of used */
    struct memory *free[MEMORY_CLASSES]; /* the last one used is first: it is in the caches */
    uint32_t waiting;
    uint32_t count; /* of lanes */
    atomic_uint_fast32_t threads;
};

/* Whether this is a forked child of the process that made them. */
static inline bool lanes_are_foreign(const struct iou_lanes *lanes) {
    return lanes->born != fork_generation();
}

/* Enter and leave the lane. -ENOMEM. */
int memory_join(struct iou_lane *lane);
void memory_part(struct iou_lane *lane);

/*
 * At least size bytes; waits until there is so much, for the lane and its device, too. NULL: there is none, size is
 * past the limit, or the lane ends. A thread that has some must not ask for more.
 */
struct memory *memory_get(struct iou_lane *lane, size_t size);
void memory_put(struct iou_lane *lane, struct memory *memory);

/* Let those who wait look whether their lane ends. */
void memory_wake(struct iou_lanes *lanes);

/* ---- messages --------------------------------------------------------------------------------------------------- */

/* nbd.md: the numbers of the transmission phase. */
enum { CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES, CMD_BLOCK_STATUS, COMMANDS };
enum { FLAG_FUA = 1, FLAG_NO_HOLE = 2, FLAG_DF = 4, FLAG_REQ_ONE = 8, FLAG_FAST_ZERO = 16, FLAG_PAYLOAD_LEN = 32 };
enum {
    NBD_EPERM = 1,
    NBD_EIO = 5,
    NBD_EINVAL = 22,
    NBD_ENOSPC = 28,
    NBD_EOVERFLOW = 75,
    NBD_ENOTSUP = 95,
    NBD_ESHUTDOWN = 108
};
enum { CHUNK_NONE = 0, CHUNK_DATA = 1, CHUNK_HOLE = 2, CHUNK_STATUS = 5, CHUNK_STATUS_EXT = 6, CHUNK_ERROR = 0x8001 };

#define MAX_HEADER 32u            /* of a request or a reply: an extended one */
#define MAX_PAYLOAD (32 * MIB)    /* what READ and WRITE may move */
#define MAX_DRAINED (64 * MIB)    /* a longer payload is not read only to be refused: the connection ends */
#define MAX_STATUS_EXTENTS 65536u /* in one reply */
#define MAX_COMPACT_EXTENT (((uint64_t)1 << 32) - 64 * KIB)

struct request {
    uint64_t cookie; /* as it came */
    uint64_t offset, length, payload;
    uint16_t flags, command;
    uint32_t error;   /* why it is refused; 0: it is not */
    const char *text; /* of the error */
};

/* What was negotiated. */
struct dialect {
    uint64_t size;
    uint32_t flags;
    uint32_t header_size; /* of requests */
};

/* Whether replies come in chunks. */
static inline bool wire_has_chunks(const struct dialect *dialect) {
    return dialect->flags & (IOU_LANE_STRUCTURED | IOU_LANE_EXTENDED);
}

/* -EPROTO: nothing can be understood any more. */
int wire_parse(const struct dialect *dialect, const char *header, struct request *request);
void wire_refuse(struct request *request, uint32_t error, const char *text);

/* Write a header of at most MAX_HEADER bytes; returns its size. */
size_t wire_simple(char *header, const struct request *request, uint32_t error);
size_t wire_chunk(char *header, const struct dialect *dialect, const struct request *request, uint16_t type, bool done,
                  uint64_t length);
size_t wire_put16(char *place, uint16_t number);
size_t wire_put32(char *place, uint32_t number);
size_t wire_put64(char *place, uint64_t number);

/* ---- the lane --------------------------------------------------------------------------------------------------- */

#define LANE_STAGING ((uint64_t)IOU_LANE_MAX_STAGED)

/* The error of a request, 0: none, and its text. */
struct answer {
    uint32_t error;
    const char *text;
};

/* The last piece of a WRITE's payload, and what became of those before it. */
struct payload {
    struct memory *memory; /* NULL: there is none */
    char *data;
    uint64_t offset, length;
    struct answer answer;
};

struct lane_thread {
    struct link link; /* in lane->threads */
    struct link idle; /* in lane->idle */
    struct iou_lane *lane;
    struct guest guest;
    sem_t wake;
    atomic_uint_fast64_t storage_since; /* ns; 0: storage owes nothing */
};

struct iou_lane {
    struct iou_lanes *lanes;
    struct borrower *borrower;
    uint64_t lent; /* bytes of memory; under the lock of lanes */
    struct iou_engine *engine;
    iou_handle *handle; /* holds a reference */
    iou_control *control;
    iou_lease *lease;
    struct dialect dialect;
    uint32_t context;
    uint32_t *errors, errors_count;
    char *reply; /* to the negotiation, until the first thread has sent it */
    size_t reply_length;
    int timeout_ms;
    int fd, wake_fd, event_fd;
    atomic_bool refusing; /* requests are read and refused */
    atomic_bool leaving;  /* no more requests are read */
    atomic_bool broken;   /* nothing can be sent */
    atomic_int error;
    atomic_uint_fast32_t running;
    atomic_uint_fast64_t requests, sent, zeroed[7];
    atomic_uint_fast32_t sleeps[IOU_EXTENTS + 1]; /* how often operations of a kind slept lately; lane_requests.c */

    pthread_mutex_t send_lock;

    /* The leader's: who reads from the socket. */
    char staging[LANE_STAGING];
    uint32_t staged_start, staged_end, window, refused;
    uint64_t look_ns; /* for how long the next header is looked for before the leader sleeps */

    pthread_mutex_t lock; /* of all below; a leaf but for the engine's */
    struct link threads, idle;
    uint32_t threads_count;
    struct lane_thread *leader;
    struct lane_thread *_Atomic watcher;
    atomic_bool watcher_asleep;
    atomic_uint_fast64_t turns; /* odd: the leader does a request itself */
    bool ended;

    pthread_mutex_t counts_lock; /* a leaf */
    pthread_cond_t counts_fetched;
    iou_lane_report reports[IOU_LANE_REPORTS];
    uint32_t reports_count;
    uint64_t reports_lost;
    iou_range *ranges;
    uint32_t ranges_count, ranges_size;
};

/* ---- the socket; receiving is for the leader only --------------------------------------------------------------- */

/* -errno */
int socket_init(struct iou_lane *lane);

/* Receive the next header; false: there is none, the connection ends. *header is valid until the next call. */
bool socket_header(struct iou_lane *lane, const char **header);

/* Receive length bytes of a payload; NULL: drop them. False: the connection ends. */
bool socket_payload(struct iou_lane *lane, char *memory, uint64_t length);

/* Send all, whole, in one go with regard to other threads. Failure ends the connection. */
void socket_send(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* End the connection, because of error if it is the first one. */
void socket_break(struct iou_lane *lane, int error);

/* Let whoever waits look at the lane's state. */
void lane_wake(struct iou_lane *lane);

/* Start the first thread, which leads. -EAGAIN: none can be had. */
int lane_first_thread(struct iou_lane *lane);

/* Whether requests are refused: the ticket has expired or was cancelled, the server stops, or the connection broke. */
bool lane_refuses(const struct iou_lane *lane);

/* ---- what is told ----------------------------------------------------------------------------------------------- */

void counts_free(struct iou_lane *lane);
void counts_add(struct iou_lane *lane, uint64_t start, uint64_t end);
void counts_wake(struct iou_lane *lane);
void counts_report(struct iou_lane *lane, const struct op *op);

/* Tell the owner that there is something to see. */
void lane_notify(struct iou_lane *lane);

/* ---- replies ---------------------------------------------------------------------------------------------------- */

void reply_success(struct iou_lane *lane, const struct request *request);
void reply_error(struct iou_lane *lane, const struct request *request, uint32_t error, const char *text);

/* Part or all of what a READ has found, which is at offset; done: it is the last part. */
void reply_data(struct iou_lane *lane, const struct request *request, char *data, uint64_t offset, uint64_t length,
                bool done);

/* extents: count records, overwritten. */
void reply_status(struct iou_lane *lane, const struct request *request, iou_extent *extents, uint32_t count);

/* ---- operations ------------------------------------------------------------------------------------------------- */

/* Run an operation on the lane's image, and note all that is told of it. */
struct answer operation_run(struct lane_thread *thread, struct op *op);

/* What an expired or cancelled ticket's requests are answered; the connection ends with it. */
struct answer operation_refused(struct iou_lane *lane);

/* Whether operations of this kind do not sleep in storage, mostly: see lane_operations.c. */
bool operation_is_quick(const struct iou_lane *lane, uint32_t kind);
void operations_init(struct iou_lane *lane);

/* ---- requests --------------------------------------------------------------------------------------------------- */

/* Whether storage is known to do this so fast that handing the turn on would cost more. */
bool request_is_quick(struct iou_lane *lane, const struct request *request);

/*
 * Receive the request's payload. That of a WRITE is written but for its last piece, which is left in *payload for
 * request_run(); any other is dropped. False: the connection ends.
 */
bool request_receive(struct lane_thread *thread, const struct request *request, struct payload *payload);

/* Do it, and answer. Gives the payload's memory back. */
void request_run(struct lane_thread *thread, const struct request *request, struct payload *payload);

#endif
