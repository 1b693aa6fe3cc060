/* SPDX-License-Identifier: Apache-2.0 */

/* The functions for the owner of an external image: taking operations in order, and ending them with a result. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/fork.h"
#include "base/numbers.h"
#include "image/external.h"

#define MAX_NAME 255u
#define MAX_ERRNO 4095
#define MIN_PIECE (64 * KIB)
#define MAX_AHEAD 16u

/* ---- taking operations ------------------------------------------------------------------------------------------ */

static bool is_foreign(const iou_handle *handle) {
    return handle->born != fork_generation();
}

static void describe(const struct op *op, iou_errand *errand) {
    bool has_records = op->kind == IOU_EXTENTS, has_data = op->kind == IOU_READ || op->kind == IOU_WRITE;
    uint64_t length = has_records ? op->buffer_size : has_data ? op->length : 0;
    *errand = (iou_errand){
        .id = op->errand.id,
        .kind = op->kind,
        .flags = op->flags,
        .offset = op->offset,
        .length = op->length,
        .memory = length ? op->buffer : NULL,
        .memory_length = length,
        .control = op->control,
    };
}

/* Add an errand for each operation that was canceled after it was taken. The lock is held. */
static uint32_t take_canceled(struct external *external, iou_errand *errands, uint32_t max) {
    uint32_t count = 0;
    for (struct link *node = external->taken.next; node != &external->taken && count < max; node = node->next) {
        struct op *op = external_op(node);
        if (op->errand.told || !op_canceled(op))
            continue;
        op->errand.told = true;
        errands[count++] = (iou_errand){.id = op->errand.id};
    }
    external->interrupted = count == max;
    return count;
}

/* Take operations from the queue, up to the first one that is not ready. The lock is held. */
static uint32_t take_queued(struct external *external, iou_errand *errands, uint32_t max) {
    uint32_t count = 0;
    external_drop(external, false);
    while (count < max && !link_empty(&external->queued)) {
        struct op *op = external_op(external->queued.next);
        if (!op->errand.ready)
            break;
        link_remove(&op->errand.link);
        link_append(&external->taken, &op->errand.link);
        op->errand.id = ++external->last_id;
        describe(op, &errands[count++]);
    }
    return count;
}

int iou_external_fd(iou_handle *handle) {
    return external_of(handle)->event_fd;
}

int iou_external_take(iou_handle *handle, iou_errand *errands, uint32_t max) {
    struct external *external = external_of(handle);
    eventfd_t events;
    if (is_foreign(handle))
        return -ECHILD;
    pthread_mutex_lock(&external->lock);
    uint32_t count = external->interrupted ? take_canceled(external, errands, max) : 0;
    count += take_queued(external, errands + count, max - count);
    if (count < max && external->signaled) {
        eventfd_read(external->event_fd, &events);
        external->signaled = false;
    }
    pthread_mutex_unlock(&external->lock);
    return (int)count;
}

/* ---- ending operations ------------------------------------------------------------------------------------------ */

/* Whether the records are extents from the operation's offset on, without gaps, and not past its end. */
static bool are_extents(const struct op *op, uint32_t count) {
    const iou_extent *extents = op->buffer;
    uint64_t place = op->offset, left = op->length;
    if (count > op->buffer_size / sizeof(*extents))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (extents[i].start != place || extents[i].length == 0 || extents[i].length > left || extents[i].hole > 1)
            return false;
        place += extents[i].length;
        left -= extents[i].length;
    }
    return true;
}

static bool can_be(const struct op *op, const iou_completion *completion) {
    if (completion->error < 0 || completion->error > MAX_ERRNO || completion->done > op->length)
        return false;
    if (completion->syscall != IOU_SYS_NONE && completion->syscall != IOU_SYS_EXTERNAL)
        return false;
    if (completion->method < IOU_METHOD_NONE || completion->method > IOU_METHOD_REMOTE)
        return false;
    return op->kind == IOU_EXTENTS && !completion->error ? are_extents(op, completion->count) : completion->count == 0;
}

static void fill_in(struct op *op, const iou_completion *completion) {
    uint64_t done = completion->error || op->kind == IOU_EXTENTS ? completion->done : op->length;
    if (op->kind != IOU_FLUSH)
        op_advance(op, done);
    op->result.error = completion->error;
    op->result.syscall = completion->syscall;
    op->result.size = completion->size;
    op->result.method = completion->method;
    op->result.count = completion->count;
}

/* Find an operation that was taken. NULL: there is none. The lock is held. */
static struct op *find(struct external *external, uint64_t id) {
    for (struct link *node = external->taken.next; node != &external->taken; node = node->next)
        if (external_op(node)->errand.id == id)
            return external_op(node);
    return NULL;
}

int iou_external_end(iou_handle *handle, const iou_completion *completion) {
    static const iou_completion IMPOSSIBLE = {.error = EIO, .syscall = IOU_SYS_EXTERNAL};
    struct external *external = external_of(handle);
    int error = 0;
    if (is_foreign(handle))
        return -ECHILD;
    pthread_mutex_lock(&external->lock);
    struct op *op = find(external, completion->cookie);
    if (!op) {
        error = -ENOENT;
    } else {
        error = can_be(op, completion) ? 0 : -EINVAL;
        fill_in(op, error ? &IMPOSSIBLE : completion);
        external_finish(op);
    }
    pthread_mutex_unlock(&external->lock);
    return error;
}

void iou_external_resize(iou_handle *handle, uint64_t size) {
    if (!is_foreign(handle))
        handle->image->size = min_u64(size, INT64_MAX);
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

static bool is_piece(uint64_t piece) {
    return piece >= MIN_PIECE && piece <= IOU_EXTERNAL_PIECE && is_aligned(piece, piece);
}

static bool is_valid(const iou_external_options *options) {
    return options->name && options->size <= INT64_MAX && is_piece(options->piece) && options->ahead &&
           options->ahead <= MAX_AHEAD;
}

static iou_handle *new_handle(const iou_external_options *options) {
    iou_handle *handle = calloc(1, sizeof(*handle));
    struct external *external = calloc(1, sizeof(*external));
    char *name = strndup(options->name, MAX_NAME);
    if (!handle || !external || !name) {
        free(handle);
        free(external);
        free(name);
        return NULL;
    }
    *handle = (iou_handle){
        .ops = &EXTERNAL_IMAGE,
        .image = &external->image,
        .refs = 1,
        .born = fork_generation(),
        .fd = -1,
        .tail_fd = -1,
        .writable = true, /* the owner refuses writes that it cannot do */
        .path = name,
    };
    image_init(&external->image, IOU_EXTERNAL, options->device, 0);
    external->image.size = options->size;
    external->image.grows = options->grows;
    external->image.pieces = (struct pieces){options->piece, options->ahead};
    pthread_mutex_init(&external->lock, NULL);
    external->event_fd = -1;
    link_init(&external->queued);
    link_init(&external->taken);
    return handle;
}

int iou_external_new(const iou_external_options *options, iou_handle **result) {
    fork_watch();
    if (!is_valid(options))
        return -EINVAL;
    iou_handle *handle = new_handle(options);
    if (!handle)
        return -ENOMEM;
    struct external *external = external_of(handle);
    external->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (external->event_fd == -1) {
        int error = -errno;
        handle_put(handle);
        return error;
    }
    *result = handle;
    return 0;
}

int iou_external_close(iou_handle *handle) {
    struct external *external = external_of(handle);
    uint32_t left = 0;
    if (is_foreign(handle))
        return -ECHILD;
    handle->closing = true;
    pthread_mutex_lock(&external->lock);
    external->closed = true;
    external_drop(external, true);
    for (const struct link *node = external->taken.next; node != &external->taken; node = node->next)
        left++;
    pthread_mutex_unlock(&external->lock);
    return (int)left;
}

int iou_external_free(iou_handle *handle) {
    struct external *external = external_of(handle);
    if (is_foreign(handle))
        return -ECHILD;
    pthread_mutex_lock(&external->lock);
    bool busy = !external->closed || !link_empty(&external->taken);
    pthread_mutex_unlock(&external->lock);
    if (busy)
        return -EBUSY;
    handle_put(handle);
    return 0;
}
