/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operations. The functions that work for an operation return 0 or -errno, and set the system call that has failed in
 * op->result.syscall (op_fail).
 */

#ifndef IOUTIL_IMAGE_OPERATION_H
#define IOUTIL_IMAGE_OPERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "api/ioutil.h"
#include "api/qcow2.h"
#include "base/clock.h"
#include "base/link.h"
#include "base/waiter.h"
#include "image/admission.h"

struct device;
struct op;

/*
 * The functions of a kind of image: engine/file_image.c has those of files and devices, nbd_client/extents.c those of
 * images that a server has, qcow2/image.c those of images with that format, qcow2/packed.c those of files with that
 * format that are made of any of these. engine/running.c has the course of an operation on any image.
 */
struct image_ops {
    /* Another server has the image: an operation waits for that, and FUA is part of each change. */
    bool remote;

    /* Claim the range of a change, in order of arrival: see op_claim(). */
    int (*claim)(struct op *op);

    /* Whether a fiber may run the operation: it does not keep the thread, for its calls are asynchronous or short, or
       the lane has nothing else to do. */
    bool (*is_prompt)(const struct op *op);

    /* Do an operation, or a turn of it, by iou_kind from IOU_STAT on. 0 or -errno. */
    int (*run[IOU_EXTENTS + 1])(struct op *op);

    /* Put the change of an operation, which has FUA, on stable storage. */
    int (*sync)(struct op *op);

    /* Controls were canceled: end the waits in operations of the image, but for those for claims. NULL: there are none.
     */
    void (*wake)(const iou_handle *handle);

    /* Close the image of the handle, which is gone then. Blocks. NULL: it is a file or device, or there is nothing to
       be done. */
    void (*close)(iou_handle *handle);

    /* Free the handle's part of the image, after its last use. NULL: there is none. */
    void (*free)(iou_handle *handle);
};

/* The state of a zero that tries one method after the other (image/zero.c), or of a trim; kept between turns. */
struct zeroing {
    struct op *op;
    const iou_method *methods; /* in the order in which they are tried, then NONE; of a trim: NULL */
    bool fast_only;
    bool past_eof;    /* the range starts at or past the end of the file: there is nothing to free */
    bool changed;     /* a part of the range may have been zeroed */
    int grow_later;   /* FALLOC_FL_KEEP_SIZE, until the file was extended to the end of the range */
    unsigned skipped; /* bits of the methods that were refused for this request */
};

/*
 * The length of a turn. A longer operation lets others run at its next step. With eight long operations, another one
 * waits for a turn and one step. A change of turns costs 10 us for locks and wake-ups, which is negligible.
 */
#define TURN_NS UINT64_C(100000000)

/*
 * An operation. Its progress has no gaps: a turn goes on at offset + result.done, where the turn before has stopped.
 */
struct op {
    struct link link; /* in a device's queue, the parked list, a completion queue, or the engine's own_thread */
    struct iou_engine *engine;
    struct iou_queue *queue; /* NULL: it has no completion */
    const void *owner;       /* the lane that it is for, or NULL */
    struct device *device;
    iou_handle *handle;           /* holds a reference; NULL: open */
    char *path;                   /* open: owned */
    const iou_qcow2_chain *chain; /* open of an image with a format; the caller's */
    uint32_t kind, flags;
    uint64_t offset, length;
    void *buffer;
    uint64_t buffer_size;
    uint64_t tells; /* extents, of lanes: the flags that are wanted, of each bitmap its own; 0: as `flags` says */
    iou_control *control;
    uint64_t submitted_at, started_at; /* started_at: 0: it has not begun */
    uint64_t turn_end;                 /* ns: the end of the turn */
    uint64_t most;                     /* most bytes of a turn of a write, at least a page; 0: no limit */
    bool claimed;                      /* claim is in the image's claims */
    bool waits;                        /* the claim had blockers when it was taken */
    bool sleeps;                       /* who began it sleeps until a worker has run it */
    bool abandoned;                    /* the engine was stopped: it must not run */
    bool changes;                      /* it is counted in image->activity */
    bool alone;                        /* nothing else of its lane is under way, so it may keep the thread */
    bool shares_thread;                /* others need its thread: it does not wait for the journal of its handle */
    bool needs_worker;                 /* what comes next waits for that journal; set only if it shares its thread */
    bool is_done;                      /* all but the write of that journal has been done */
    bool flushes_fail;                 /* it has found that each later flush fails */
    struct waiter waiter;              /* of who began it: for its claim, a worker, or the server of the image */
    struct claim claim;
    struct zeroing zeroing;
    char *bounce; /* aligned memory of io.c, allocated at its first use */
    iou_completion result;
};

static inline int op_fail(struct op *op, iou_syscall call, int error) {
    op->result.syscall = (int32_t)call;
    return error < 0 ? error : -error;
}

/* Return the offset at which the operation goes on. */
static inline uint64_t op_position(const struct op *op) {
    return op->offset + op->result.done;
}

/* Whether the turn has ended. Checked between steps; each turn has at least one step. */
static inline bool op_turn_is_over(const struct op *op) {
    return now_ns() >= op->turn_end;
}

/*
 * Count progress, for the completion and for the control of the request. Extents move no bytes: a request that looks
 * for data and reads it, for a checksum, would count them twice.
 */
static inline void op_advance(struct op *op, uint64_t bytes) {
    op->result.done += bytes;
    if (op->control && op->kind != IOU_EXTENTS)
        __atomic_fetch_add(&op->control->done, bytes, __ATOMIC_RELAXED);
}

/* control: NULL: nobody can cancel it. */
static inline bool control_is_canceled(const iou_control *control) {
    return control && __atomic_load_n(&control->canceled, __ATOMIC_RELAXED);
}

static inline bool op_canceled(const struct op *op) {
    return control_is_canceled(op->control);
}

#endif
