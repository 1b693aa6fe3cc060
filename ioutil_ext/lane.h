/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The parts of a lane, whatever its protocol: memory (lane_memory.c) and what it is cut from (lane_slabs.c), the socket
 * (lane_socket.c) and receiving from it (lane_receive.c), operations (lane_operations.c) and how many of them a device
 * has at a time (lane_depth.c), who waits for these (lane_waiters.c), what is told of it (lane_counts.c), threads and
 * their turns (lane_turns.c), beginning and end (lane.c). nbd.h and http.h have the protocols.
 */

#ifndef IOUTIL_LANE_H
#define IOUTIL_LANE_H

#include <semaphore.h>
#include <sys/uio.h>

#include "engine.h"
#include "tls.h"

#include "lane_api.h"

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* The largest piece of memory, and the slab that a piece is cut from: a huge page. */
#define LANE_PIECE (2 * MIB)

/* One request at a time, of all lanes, may have so much in one piece. */
#define LANE_LONG (32 * MIB)

/* Page-aligned memory. slab: NULL: a long one. */
struct memory {
    struct slab *slab;
    char *data;
    size_t size;
};

/* What the connections of one ticket have of memory and threads, and their requests that wait for memory. */
struct share {
    struct link link;        /* in lanes->shares */
    struct link turn;        /* in lanes->waiting, if somebody waits */
    const iou_lease *ticket; /* whose it is */
    uint64_t lent;           /* bytes of pieces */
    atomic_uint_fast32_t threads;
    uint32_t lanes;
    struct link waiters; /* the first one first */
};

struct iou_lanes {
    struct iou_engine *engine;
    uint32_t born; /* fork generation; a lane may outlive the engine */
    pthread_mutex_t lock;
    struct borrower *borrowers;
    uint64_t limit, used; /* of slabs */
    uint64_t long_limit;
    bool long_taken;
    struct link kept; /* slabs that nobody uses; the last one used is first: it is in the caches */
    uint64_t kept_size;
    struct link shares;
    struct link waiting; /* shares of which requests wait for memory, that whose turn is next first; lane_memory.c */
    uint32_t count;      /* of lanes */
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
 * At least size bytes; waits until there is so much, for the lane, its ticket and its device, too, if it shall. NULL:
 * there is none, size is past the limit, or the request ends. A thread that has some must not wait for more.
 */
struct memory *memory_get(struct iou_lane *lane, size_t size, bool wait);
void memory_put(struct iou_lane *lane, struct memory *memory);

/* The same place in a page as in the image, so that whole blocks are not copied; and the bytes that this takes. */
static inline char *place_in(const struct memory *memory, uint64_t offset) {
    return memory->data + offset % PAGE_UNIT;
}

static inline uint64_t room_for(uint64_t offset, uint64_t length) {
    return offset % PAGE_UNIT + length;
}

/* Let those who wait look whether their lane ends. */
void memory_wake(struct iou_lanes *lanes);

/* ---- the lane --------------------------------------------------------------------------------------------------- */

#define LANE_STAGING ((uint64_t)IOU_LANE_MAX_STAGED)

/*
 * For so long a peer may keep memory waiting that is lent for a piece. A peer that sends less than the staging in it,
 * 1.3 MB/s, has none while it is waited for; to one that sends 20 MB/s a piece of 1 MiB is lent as long as it takes.
 */
#define LANE_MOMENT_MS 50u

/*
 * The same for a peer that does not read. A socket has room only when much of it was read: of a unix socket 150 KiB, of
 * TCP's longest buffers a third of 4 MiB. So what reads 5 MB/s does not pause.
 */
#define LANE_PAUSE_MS 250u

struct lane_thread;

/* What is different between the protocols. */
struct lane_kind {
    const char *thread_name;
    /* A request that has begun goes on when the ticket expires, and when no more are wanted. */
    bool finishes;
    /* Read requests and do them until another thread leads, or there are no more; false: the latter. */
    bool (*lead)(struct lane_thread *thread);
    /* No thread is left: give back what the kind has. */
    void (*end)(struct iou_lane *lane);
};

struct lane_thread {
    struct link link; /* in lane->threads, or in lane->spare */
    struct link idle; /* in lane->idle */
    struct iou_lane *lane;
    struct guest guest;
    sem_t wake;
    atomic_uint_fast64_t storage_since; /* ns; 0: storage owes nothing */
};

struct iou_lane {
    struct iou_lanes *lanes;
    struct borrower *borrower;
    struct depth *depth; /* of the borrower: lane_depth.h */
    struct share *share; /* of the ticket */
    uint64_t lent;       /* bytes of pieces; under the lock of lanes */
    struct iou_engine *engine;
    iou_handle *handle; /* holds a reference */
    iou_control *control;
    iou_lease *lease;
    const struct lane_kind *kind;
    void *own; /* what the kind knows besides */
    uint64_t size;
    uint32_t flags;
    int timeout_ms;
    int fd, wake_fd, event_fd;
    iou_tls *tls;         /* NULL: the connection has none */
    int owners_fd;        /* of tls, before and after the lane */
    atomic_bool refusing; /* no more requests are begun */
    atomic_bool leaving;  /* no more requests are read */
    atomic_bool broken;   /* nothing can be sent */
    atomic_bool active;   /* a request runs that is more than its operations */
    atomic_int error;
    atomic_uint_fast32_t running; /* requests that were begun and not answered */
    atomic_uint_fast64_t requests, received, sent, zeroed[7];
    atomic_uint_fast32_t sleeps[IOU_EXTENTS + 1]; /* how often operations of a kind slept lately; lane_operations.c */

    pthread_mutex_t send_lock; /* whose turn it is to send: recursive */

    /* The leader's: who reads from the socket. */
    char staging[LANE_STAGING];
    uint32_t staged_start, staged_end, refused;
    uint64_t checked_ns; /* when the peer was alive; lane_socket.c */
    uint64_t look_ns;    /* for how long the next header is looked for before the leader sleeps */

    pthread_mutex_t lock; /* of all below; the engine's, those of counts, lanes and claims are taken after it */
    struct link threads, idle;
    struct link spare; /* what threads leave behind: one may still be woken that has gone */
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

/* ---- the socket, for any thread --------------------------------------------------------------------------------- */

/* Send all, whole, in one go with regard to other threads. Failure ends the connection. */
void socket_send(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* The same until the peer pauses: it takes nothing for LANE_PAUSE_MS. Returns how many bytes it has taken. */
uint64_t socket_send_until_pause(struct iou_lane *lane, struct iovec *parts, unsigned count);

/* Keep other threads from sending, until the turn is given back. False: the peer pauses, and it is another one's turn.
 */
bool socket_take_turn_until_pause(struct iou_lane *lane);
void socket_take_turn(struct iou_lane *lane);
void socket_give_turn(struct iou_lane *lane);
void socket_init_turns(struct iou_lane *lane);

/* Wait until more can be sent; returns 0 or an errno. Progress is also what leaves the kernel: a slow reader makes room
   only seldom. */
int socket_await_room(struct iou_lane *lane);

/* The same; failure ends the connection. */
void socket_await_reader(struct iou_lane *lane);

/* End the connection, because of error if it is the first one. */
void socket_break(struct iou_lane *lane, int error);

/* End the connection if its peer is gone: a reset, or the other end of a unix socket closed. For the leader. */
void socket_check(struct iou_lane *lane);

/* Wake the leader where it waits for the peer. */
void socket_wake(struct iou_lane *lane);

/* ---- receiving; for the leader only, but for the first two ------------------------------------------------------ */

/* Make it what receiving needs. -errno */
int socket_init(struct iou_lane *lane);

/* Make it what it was. */
void socket_restore(struct iou_lane *lane);

/*
 * Receive more behind what is staged, until so many bytes are; at least one. 0: no more comes, of the client or because
 * the lane ends. -ETIMEDOUT after ms (-1: never), -ECANCELED unless ms is -1, or the socket's -errno. ms of 0 does not
 * wait: -EAGAIN.
 */
ssize_t socket_stage(struct iou_lane *lane, uint32_t most, int ms);

/* For how long bytes of a payload are waited for. */
enum socket_patience { SOCKET_NOW, SOCKET_MOMENT, SOCKET_LONG };

/*
 * Receive length bytes of a payload, or what comes of them in time; NULL: drop them. Returns how many came; if fewer,
 * *error is as above, -EAGAIN unless it waits long.
 */
uint64_t socket_receive(struct iou_lane *lane, char *memory, uint64_t length, enum socket_patience patience,
                        int *error);

/* Stage the bytes that were just received, so that they are received again. Nothing is staged now. */
void socket_put_back(struct iou_lane *lane, const char *memory, size_t size);

/* Stage so many bytes of a payload; false: they do not come, and *error is as above. */
bool socket_gather(struct iou_lane *lane, uint32_t least, int *error);

/*
 * Wait until somebody wakes the leader, or the peer is gone, which ends the connection. Over TLS, who sends no more
 * does not listen either: received: all of his request is here, so an end is not in the middle of it.
 */
void socket_watch(struct iou_lane *lane, bool received);

/* ---- the lane's state ------------------------------------------------------------------------------------------- */

/* Let whoever waits look at the lane's state. */
void lane_wake(struct iou_lane *lane);

/*
 * Begin a lane. own: for kind, which ends it; still the caller's if this fails. Returns as
 * iou_nbd_start() does.
 */
int lane_start(iou_lanes *lanes, iou_handle *handle, const iou_lane_options *options, const struct lane_kind *kind,
               void *own, iou_lane **result);

/* Whether nobody wants what runs: the transfer was cancelled, or the connection broke. */
bool lane_canceled(const struct iou_lane *lane);

/* Whether no request is begun: the ticket has expired or was cancelled, the server stops, or the connection broke. */
bool lane_refuses(const struct iou_lane *lane);

/* Renew the ticket: a request that used it has ended. */
void lane_renew(struct iou_lane *lane);

/* Whether a request that has begun ends. */
bool lane_cuts(const struct iou_lane *lane);

/* ---- turns ------------------------------------------------------------------------------------------------------ */

/* Start the first thread, which leads. -EAGAIN: none can be had. */
int turn_first(struct iou_lane *lane);

/* Make another thread the leader. False: there is none, and none can be had. */
bool turn_hand_over(struct lane_thread *thread);

/* The leader does something itself that may turn out to sleep. Returns, at the end, whether it still leads. */
void turn_begin(struct lane_thread *thread);
bool turn_end(struct lane_thread *thread);

/* See to it that somebody watches the leader. */
void turn_ensure_watcher(struct iou_lane *lane);

/* No thread is left. */
void turns_free(struct iou_lane *lane);

/* ---- what is told ----------------------------------------------------------------------------------------------- */

void counts_free(struct iou_lane *lane);
void counts_add(struct iou_lane *lane, uint64_t start, uint64_t end);
void counts_wake(struct iou_lane *lane);
/* Tell what storage did, if somebody should know: error, or that it was slow, or gave something up. */
void counts_report(struct iou_lane *lane, const struct op *op, int error);

/* Tell the owner that there is something to see. */
void lane_notify(struct iou_lane *lane);

/* ---- operations ------------------------------------------------------------------------------------------------- */

/*
 * Begin an operation on the lane's image: what it changes is claimed. So this is done as soon as the request is there,
 * and before anything that waits: what arrives later comes later. It is followed by turns until it has ended.
 */
void operation_begin(struct iou_lane *lane, struct op *op);

/* Run it for a turn, which may wait for others before. True: it has ended. */
bool operation_turn(struct lane_thread *thread, struct op *op);

/* Count one that has ended. Returns its errno. */
int operation_end(struct iou_lane *lane, struct op *op);

/* All of it at once, for who did not begin it before. Returns its errno. */
int operation_run(struct lane_thread *thread, struct op *op);

/* Whether operations of this kind do not sleep in storage, mostly: see lane_operations.c. */
bool operation_is_quick(const struct iou_lane *lane, uint32_t kind);
void operations_init(struct iou_lane *lane);

#endif
