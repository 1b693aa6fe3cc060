/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the modules of the storage engine share. Errors: functions that can fail return 0 or -errno; those that work
 * for an operation note the failing system call in op->result.syscall first (op_fail).
 *
 * Locks, in the order in which they may nest: engine->lock, then image->claims.lock. registry, image->size_lock and
 * queue->lock are leaves. Only size_lock is held over system calls on storage.
 */

#ifndef IOUTIL_INTERNAL_H
#define IOUTIL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ioutil_api.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define MIN_BLOCK_SIZE 512u
#define PAGE_UNIT 4096u
#define MAX_BLOCK_SIZE (64u << 10) /* of Linux; bounds what an edge needs of memory */
#define MAX_PATH_LENGTH 4095u

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

/* unit: a power of two. */
static inline uint64_t round_down(uint64_t value, uint64_t unit) {
    return value & ~(unit - 1);
}

/* value + unit must not overflow; values here are below 2^63. */
static inline uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) & ~(unit - 1);
}

static inline bool is_aligned(uint64_t value, uint64_t unit) {
    return (value & (unit - 1)) == 0;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* ns, CLOCK_MONOTONIC. */
uint64_t now_ns(void);

/* ---- lists ------------------------------------------------------------------------------------------------------ */

/* A node of a circular list, or the list itself. An unlinked node points to itself. */
struct link {
    struct link *prev, *next;
};

static inline void link_init(struct link *node) {
    node->prev = node->next = node;
}

static inline bool link_empty(const struct link *node) {
    return node->next == node;
}

static inline void link_append(struct link *list, struct link *node) {
    node->prev = list->prev;
    node->next = list;
    list->prev->next = node;
    list->prev = node;
}

static inline void link_remove(struct link *node) {
    node->prev->next = node->next;
    node->next->prev = node->prev;
    link_init(node);
}

/* Move all nodes to another list, not initialized yet. */
static inline void link_move(struct link *from, struct link *to) {
    link_init(to);
    if (link_empty(from))
        return;
    *to = *from;
    to->next->prev = to->prev->next = to;
    link_init(from);
}

#define container_of(node, type, member) ((type *)(void *)((char *)(node) - offsetof(type, member)))

/* ---- system calls (syscalls.c) ---------------------------------------------------------------------------------- */

/* The replaceable calls. Each retries EINTR and returns its value, or -errno. */
int sys_open(const char *path, int flags);
void sys_close(int fd); /* never retried: the descriptor is gone, whatever close() says */
ssize_t sys_pread(int fd, void *buffer, size_t length, uint64_t offset);
ssize_t sys_pwrite(int fd, const void *buffer, size_t length, uint64_t offset);
int sys_fallocate(int fd, int mode, uint64_t offset, uint64_t length);
int sys_blkzeroout(int fd, uint64_t offset, uint64_t length);
int sys_ftruncate(int fd, uint64_t size);
int sys_size(int fd, uint64_t *size);
int sys_fdatasync(int fd);
int sys_write_back(int fd, uint64_t offset, uint64_t length); /* dirty pages, not metadata nor the disk's cache */
int sys_drop_clean(int fd, uint64_t offset, uint64_t length);
int64_t sys_lseek(int fd, uint64_t offset, int whence);

/* Changes in a forked child: what was made before the fork must not be used in it (locks, threads). */
uint32_t fork_generation(void);
void fork_watch(void);

/* ---- claims: who works on which bytes (admission.c) ------------------------------------------------------------- */

struct range {
    uint64_t start, end; /* empty when equal */
};

/*
 * That a write, zero or trim runs, or waits while earlier ones exist that it overlaps. It is taken in order of arrival,
 * and kept until storage has let go of the operation, whatever became of its client: so nothing deadlocks, nothing
 * starves, and nothing takes effect after what came later.
 */
struct claim {
    uint32_t blockers; /* earlier claims that it overlaps; 0: may run */
    struct claim *next_admitted;
    void (*admitted)(struct claim *claim); /* called without locks; NULL: a thread waits in claim_wait() */
};

struct claimed {
    struct range range;
    struct claim *claim;
};

/* Of one image. */
struct claims {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for claim_wait() */
    struct claimed *all;    /* in order of arrival */
    uint32_t count, room;
    uint32_t waiting; /* of them; while there are none, nobody looks who may run now */
};

/* ---- images (image.c) ------------------------------------------------------------------------------------------- */

enum { CAN_PUNCH_HOLE, CAN_ZERO_RANGE, CAN_FALLOCATE, CAN_BLKZEROOUT, CAN_SEEK_HOLE, CAPABILITIES };
enum { CONTENT_UNKNOWN, CONTENT_ZERO, CONTENT_WRITTEN };

/* A file or device, once in the process however many handles name it. Lives as long as its handles. */
struct image {
    struct image *next; /* registry; with refs under its lock */
    uint32_t refs;
    iou_type type;
    dev_t device; /* st_dev of a file, st_rdev of a block device */
    ino_t inode;  /* 0 for block devices */

    pthread_mutex_t size_lock; /* held by what changes the size, from the fresh fstat to the end of the change */
    atomic_uint_fast64_t size; /* a lower bound of the real one: sizes only grow */

    atomic_bool can[CAPABILITIES];      /* true -> false only */
    atomic_bool given_up[CAPABILITIES]; /* refused once, and told in a completion */
    atomic_bool fallocate_proven;       /* it worked once */
    atomic_uint_fast64_t step;          /* longest range for one zeroing call */
    atomic_uint_fast64_t activity;      /* generation << WRITERS_BITS | writers in flight */
    atomic_uint_fast32_t flush_failures;
    atomic_int flush_error; /* errno of the last one */
    atomic_uint_fast32_t direct_handles, buffered_handles;
    atomic_int content; /* CONTENT_... */

    struct claims claims;
};

/* The image, made if need be; NULL: no memory. Each gives one reference, image_put() ends it. */
struct image *image_get(iou_type type, dev_t device, ino_t inode);
void image_put(struct image *image);

/* image->activity: the generation above, the number of writers in flight below. */
#define WRITERS_BITS 16
#define WRITERS_MASK (((uint64_t)1 << WRITERS_BITS) - 1)

/* ---- operations (op.c) ------------------------------------------------------------------------------------------ */

struct device;

/* One request to zero on its way down the table (zero.h), or to trim; kept from turn to turn. */
struct zeroing {
    struct op *op;
    const iou_method *rungs; /* methods in the order in which they are tried, then NONE; of a trim: NULL */
    bool fast_only;
    bool past_eof;    /* the range started at or past the end of the file: there is nothing to be freed */
    bool changed;     /* something of the range may have been zeroed */
    int grow_later;   /* FALLOC_FL_KEEP_SIZE as long as the file has not been extended to the end of the range */
    unsigned skipped; /* bits of methods that this request was refused */
};

/*
 * An operation that takes longer lets others go first, at the next step. Eight of them then hold up whoever comes for
 * this and one step; and what changing turns costs, 10 us of locks and wake-ups, is nothing.
 */
#define TURN_NS UINT64_C(100000000)

/*
 * What is done of it goes from its offset on without gaps: a turn goes on where result.done says that the one before
 * has stopped.
 */
struct op {
    struct link link; /* in a device's queue, the parked list, or a completion queue */
    struct iou_engine *engine;
    struct iou_queue *queue; /* NULL: nobody waits for the completion */
    struct device *device;
    iou_handle *handle; /* holds a reference; NULL: open */
    char *path;         /* open: owned */
    uint32_t kind, flags;
    uint64_t offset, length;
    void *buffer;
    uint64_t buffer_size;
    iou_control *control;
    uint64_t submitted_at, started_at; /* started_at: 0: it has not begun */
    uint64_t turn_end;                 /* ns: others come first then */
    uint64_t most;                     /* bytes of a turn of a write; 0: as many as come */
    bool claimed;                      /* claim is one of the image's */
    bool waits;                        /* it was not admitted when it was taken */
    bool abandoned;                    /* picked up after stop: not to be run */
    bool changes;                      /* it is counted in image->activity */
    struct claim claim;
    struct zeroing zeroing;
    char *bounce; /* aligned memory of io.c, made when first needed */
    iou_completion result;
};

/* -EINVAL if the request cannot be an operation. */
int op_check(const struct op *op);

/*
 * Run in this thread, to the end or until it is others' turn; the claim, if any, is held. True: it has ended, and
 * op->result is filled in. A canceled one has ended without having begun, or gone on.
 */
bool op_turn(struct op *op);

/* End an operation that is not under way just now, canceled. */
void op_cancel(struct op *op);

/* Enter the claim of an operation that has one. -EAGAIN: it waits; -ENOMEM. */
int op_claim(struct op *op);

/* Wait in this thread until it may run, or is canceled. */
void op_await(struct op *op);

/* Remove the claim that it has, if any, waiting or not; calls admitted of others. No lock of ours may be held. */
void op_unclaim(struct op *op);

static inline int op_fail(struct op *op, iou_syscall call, int error) {
    op->result.syscall = (int32_t)call;
    return error < 0 ? error : -error;
}

/* Where it goes on. */
static inline uint64_t op_position(const struct op *op) {
    return op->offset + op->result.done;
}

/* Whether others come first now; looked at between steps, of which each turn has at least one. */
static inline bool op_turn_is_over(const struct op *op) {
    return now_ns() >= op->turn_end;
}

/* Note progress, for the completion and for those who watch the request. */
static inline void op_advance(struct op *op, uint64_t bytes) {
    op->result.done += bytes;
    if (op->control)
        __atomic_fetch_add(&op->control->done, bytes, __ATOMIC_RELAXED);
}

static inline bool op_canceled(const struct op *op) {
    return op->control && __atomic_load_n(&op->control->canceled, __ATOMIC_RELAXED);
}

/* ---- handles (image.c) ------------------------------------------------------------------------------------------ */

struct iou_handle {
    struct image *image;
    atomic_uint_fast32_t refs; /* the owner's, and one for each operation */
    atomic_bool closing;       /* IOU_CLOSE was accepted */
    uint32_t born;             /* fork generation */
    int fd;
    int tail_fd; /* buffered, for blocks that are not wholly inside a file; -1 unless writable, direct and a file */
    bool writable, direct;
    uint32_t unit;                /* offsets and lengths of calls are multiples: block_size; 1 if a file is buffered */
    uint32_t block_size;          /* a power of two; what the device or direct I/O demands of offsets and lengths */
    uint32_t mem_align;           /* at most block_size */
    uint32_t lock_unit;           /* what is covered in part is claimed in blocks of this size: at least a page */
    uint_fast32_t flush_failures; /* the image's, when this handle was opened */
    char *path;
    struct op closer; /* closes the descriptors on a worker when the last reference ends elsewhere */
};

/* Open op->path into op->result.handle (open.c). */
int handle_open(struct op *op);

/* Find out whether all of a file is one hole, again and again until it is not: other processes write, too. */
void look_at_content(iou_handle *handle);

/*
 * Take a reference for an operation of this kind: a new one, or, for IOU_CLOSE, the owner's. -EBADF after IOU_CLOSE.
 * Given back by handle_put(); by handle_untake() if the operation does not come to be.
 */
int handle_take(iou_handle *handle, uint32_t kind, struct iou_engine *engine);
void handle_untake(iou_handle *handle, uint32_t kind, struct iou_engine *engine);

/* Close the descriptors and leave the image. Blocks. Only when one reference is left. Once. */
void handle_close(iou_handle *handle);

/* Close if this is the last reference; the memory stays until handle_put(). */
void handle_close_if_last(iou_handle *handle);

/* End a reference. The last one closes: on a worker of the engine, or, without one, here. */
void handle_put(iou_handle *handle, struct iou_engine *engine);

/* Fork: a child starts with no images. Called by the fork handlers only. */
void registry_prepare_fork(void);
void registry_after_fork(bool child);

/* ---- claims ----------------------------------------------------------------------------------------------------- */

void claims_init(struct claims *claims);
void claims_destroy(struct claims *claims);

/* Enter the claim. -EAGAIN: it waits, claim->admitted will be called (maybe before this returns). -ENOMEM. */
int claim_take(struct claims *claims, struct claim *claim, const struct range *range);

/* Sleep until a claim without admitted function may run. False: *canceled was set before. Who sets it calls
   claims_wake(). NULL: it cannot be canceled. */
bool claim_wait(struct claims *claims, struct claim *claim, const uint32_t *canceled);
void claims_wake(struct claims *claims);

/* Remove a claim that runs, or that a thread has waited for; calls admitted of those that may run now. No lock of ours
   may be held. */
void claim_release(struct claims *claims, struct claim *claim);

/* Remove a claim that waits. False: it was admitted meanwhile, and is still there. Chains what may run now to *freed
   (to be given to claims_admit()), because the caller holds the engine's lock. */
bool claim_withdraw(struct claims *claims, struct claim *claim, struct claim **freed);
void claims_admit(struct claim *freed);

/* ---- size (size.c) ---------------------------------------------------------------------------------------------- */

/* Ask for the size and raise image->size. */
int size_refresh(struct op *op, iou_handle *handle, uint64_t *size);

/* Make the file at least end bytes long. Does nothing, not even a system call, if image->size says it is. */
int size_reach(struct op *op, uint64_t end);

/* For who holds image->size_lock: make the file end bytes long, which is more than size_refresh() just told. */
int size_extend_locked(struct op *op, uint64_t end);

/* Fail because the image ends before the range, at size: others have cut it. */
int size_ends(struct op *op, uint64_t size);

/* -ENOSPC if a block device ends before end. */
int size_check_device(struct op *op, uint64_t end);

/* ---- data (io.c), zeroing (zero.c), extents (extents.c) --------------------------------------------------------- */

int io_read(struct op *op);
int io_write(struct op *op);
int io_flush(struct op *op);

/* Note that data was lost on its way to stable storage; returns error, as op_fail() does. */
int io_flush_failed(struct op *op, iou_syscall call, int error);

/*
 * Write start..end from data, or zeros if NULL, with its edges; the range is inside the image's size. start is where
 * the operation is. Counts progress; less than all if the turn is over.
 */
int io_write_range(struct op *op, const char *data, uint64_t start, uint64_t end);

int zero_run(struct op *op);
int zero_trim(struct op *op);
int extents_run(struct op *op);

/* ---- engine ----------------------------------------------------------------------------------------------------- */

/* The device id that opens of this path are counted for. */
uint64_t mount_device(const char *path);

/* Run handle->closer on a worker. False: no worker can be had. */
bool engine_submit_closer(struct iou_engine *engine, iou_handle *handle);

/* Hand a finished operation to its queue. */
void queue_push(struct iou_queue *queue, struct op *op);

struct iou_queue {
    struct iou_engine *engine;
    int eventfd;
    pthread_mutex_t lock;
    struct link completed;
    atomic_uint_fast64_t outstanding; /* submitted and not reaped */
};

/* The engine counts its queues. -ECHILD in a forked child. */
int engine_add_queue(struct iou_engine *engine);
void engine_remove_queue(struct iou_engine *engine);
bool engine_is_foreign(const struct iou_engine *engine);

#endif
