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
 * The functions of a kind of image. engine/file_image.c has those for files and devices, nbd_client/extents.c those for
 * images of NBD servers, qcow2/image.c those for qcow2 images, and qcow2/packed.c those for qcow2 files that reads make
 * from any image. engine/running.c runs an operation on any image.
 */
struct image_ops {
    /* Another server has the image. An operation waits for the server, and FUA is a part of each change. */
    bool remote;

    /* Claim the range of a change, in order of arrival; see op_claim(). */
    int (*claim)(struct op *op);

    /* Return whether a fiber may run the operation. It may if the calls are asynchronous or short, so that they do not
       block the thread, or if the lane has nothing else to do. */
    bool (*is_prompt)(const struct op *op);

    /* Do an operation, or a turn of it, by its iou_kind from IOU_STAT on. Return 0 or -errno. */
    int (*run[IOU_EXTENTS + 1])(struct op *op);

    /* Put the change of an operation with FUA on stable storage. */
    int (*sync)(struct op *op);

    /* End the waits of canceled operations on the image, except waits for claims. NULL if there are no such waits. */
    void (*wake)(const iou_handle *handle);

    /* Close the image of the handle. It must not be used after that. Blocks. NULL for files and devices, and if there
       is nothing to do. */
    void (*close)(iou_handle *handle);

    /* Free the handle's part of the image after its last use. May be NULL. */
    void (*free)(iou_handle *handle);
};

/* The state of a trim, or of a zero, which tries one method after the other (image/zero.c). It is kept between turns.
 */
struct zeroing {
    struct op *op;
    const iou_method *methods; /* in the order in which they are tried, then NONE; NULL for a trim */
    bool fast_only;
    bool past_eof;    /* the range starts at or past the end of the file, so there is nothing to free */
    bool changed;     /* a part of the range may have been zeroed */
    int grow_later;   /* FALLOC_FL_KEEP_SIZE, until the file was extended to the end of the range */
    unsigned skipped; /* bits of the methods that were refused for this request */
};

/*
 * The length of a turn. A longer operation lets others run at its next step. With eight long operations, another one
 * waits for a turn and one step. A change of turns costs 10 us for locks and wake-ups, which is negligible.
 */
#define TURN_NS UINT64_C(100000000)

/* An operation. Its progress has no gaps: a turn continues at offset + result.done, where the previous turn has
   stopped. */
struct op {
    struct link link; /* in a device's queue, the parked list, a completion queue, or the engine's own_thread */
    struct iou_engine *engine;
    struct iou_queue *queue; /* NULL if it has no completion */
    const void *owner;       /* the lane that has begun it, or NULL */
    struct device *device;
    iou_handle *handle;           /* holds a reference; NULL for an open */
    char *path;                   /* for an open; owned */
    const iou_qcow2_chain *chain; /* for an open of an image with a format; owned by the caller */
    uint32_t kind, flags;
    uint64_t offset, length;
    void *buffer;
    uint64_t buffer_size;
    uint64_t tells; /* extents, of lanes: the flags to report, one for each bitmap; 0: those of `flags` */
    iou_control *control;
    uint64_t submitted_at, started_at; /* started_at is 0 before it has begun */
    uint64_t turn_end;                 /* ns: the end of the turn */
    uint64_t most;                     /* most bytes of a turn of a write, at least a page, or 0 for no limit */
    bool claimed;                      /* claim is in the image's claims */
    bool waits;                        /* the claim had blockers when it was taken */
    bool sleeps;                       /* its thread or fiber sleeps until a worker has run it */
    bool abandoned;                    /* the engine was stopped, so it must not run */
    bool changes;                      /* it is counted in image->activity */
    bool alone;                        /* nothing else of its lane is under way, so it may block the thread */
    bool shares_thread;                /* others need its thread, so it does not wait for the journal of its handle */
    bool needs_worker;                 /* its next step waits for that journal; set only if it shares its thread */
    bool is_done;                      /* only the write of that journal is left */
    bool flushes_fail;                 /* it has found that each later flush fails */
    struct waiter waiter; /* of the thread or fiber that began it: for its claim, a worker, or the server */
    struct claim claim;
    struct zeroing zeroing;
    char *bounce; /* aligned memory of io.c, allocated at its first use */
    iou_completion result;
};

static inline int op_fail(struct op *op, iou_syscall call, int error) {
    op->result.syscall = (int32_t)call;
    return error < 0 ? error : -error;
}

/* Return the offset at which the operation continues. */
static inline uint64_t op_position(const struct op *op) {
    return op->offset + op->result.done;
}

/* Return whether the turn has ended. Check this between steps: each turn has at least one step. */
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

/* Return whether a control is canceled. Nobody can cancel if it is NULL. */
static inline bool control_is_canceled(const iou_control *control) {
    return control && __atomic_load_n(&control->canceled, __ATOMIC_RELAXED);
}

static inline bool op_canceled(const struct op *op) {
    return control_is_canceled(op->control);
}

#endif
