/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operations, as all that has a part in them knows them. What works for one returns 0 or -errno, and notes the failing
 * system call in op->result.syscall first (op_fail).
 */

#ifndef IOUTIL_IMAGE_OPERATION_H
#define IOUTIL_IMAGE_OPERATION_H

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/ioutil.h"
#include "base/clock.h"
#include "base/link.h"
#include "image/admission.h"

struct device;
struct op;

/*
 * What is done with an image, by its kind: engine/file_image.c and external.c have a row each. How an operation goes,
 * whatever the image, is in running.c.
 */
struct image_ops {
    /* Somebody else has the image: he is waited for, by the thread that runs the operation. */
    bool remote;

    /* Take the place of a change, in order of arrival: see op_claim(), op_await(), op_unclaim(). */
    int (*claim)(struct op *op);
    void (*await_claim)(struct op *op);
    void (*unclaim)(struct op *op);

    /* Do an operation, or a turn of it, by iou_kind: from IOU_STAT on. 0 or -errno. */
    int (*run[IOU_EXTENTS + 1])(struct op *op);

    /* Put a change that was made on stable storage. NULL: that is part of the change. */
    int (*sync)(struct op *op);

    /* Controls were canceled: let those who wait in the image's operations look. */
    void (*wake)(const iou_handle *handle);

    /* Free what the handle has of the image, when nobody uses it any more; NULL: nothing is left. */
    void (*free)(iou_handle *handle);
};

/* An operation that somebody else does (external.c). */
struct errand {
    struct link link; /* in the queue, or with those that were taken */
    sem_t ended;
    uint64_t id; /* 0: it was not taken */
    bool ready;  /* it may be taken */
    bool told;   /* that it is canceled */
};

/* One request to zero on its way down the table (zero/policy.c), or to trim; kept from turn to turn. */
struct zeroing {
    struct op *op;
    const iou_method *methods; /* methods in the order in which they are tried, then NONE; of a trim: NULL */
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
    void *rest; /* the last rest_length bytes of a write are here; remote images only */
    uint64_t rest_length;
    iou_control *control;
    uint64_t submitted_at, started_at; /* started_at: 0: it has not begun */
    uint64_t turn_end;                 /* ns: others come first then */
    uint64_t most;                     /* bytes of a turn of a write; 0: as many as come */
    bool claimed;                      /* claim is one of the image's */
    bool waits;                        /* it was not admitted when it was taken */
    bool abandoned;                    /* picked up after stop: not to be run */
    bool changes;                      /* it is counted in image->activity */
    struct claim claim;
    struct errand errand;
    struct zeroing zeroing;
    char *bounce; /* aligned memory of io.c, made when first needed */
    iou_completion result;
};

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

#endif
