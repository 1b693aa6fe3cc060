/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A disk as a file in the format, which is made as it is read: an image whose bytes are tables of the plan and data of
 * another image, of any kind. It can only be read.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "image/io.h"
#include "qcow2/plan.h"

struct packed {
    struct image image;
    struct image_ops ops; /* as the disk has them, where that matters */
    iou_handle *disk;     /* of which this has a reference */
    struct plan plan;
};

static struct packed *packed_of(const iou_handle *handle) {
    return container_of(handle->image, struct packed, image);
}

/* ---- operations ------------------------------------------------------------------------------------------------- */

/* Read data of the disk. The last cluster has zeros past the end of the disk. If the disk has become shorter, this
   fails. */
static int read_disk(struct op *op, uint64_t place, uint64_t length, char *memory) {
    const struct packed *packed = packed_of(op->handle);
    uint64_t inside = place < packed->plan.size ? min_u64(length, packed->plan.size - place) : 0;
    struct op inner = {
        .handle = packed->disk,
        .kind = IOU_READ,
        .offset = place,
        .length = inside,
        .buffer = memory,
        .control = op->control,
        .turn_end = UINT64_MAX, /* without turns, which the outer operation has */
    };
    int error = inside ? packed->disk->ops->run[IOU_READ](&inner) : 0;
    free(inner.bounce);
    if (error) {
        op->result.syscall = inner.result.syscall;
        op->result.size = inner.result.size;
        return error;
    }
    op->result.done += inner.result.done; /* the control has counted them already */
    if (inner.result.done < inside)
        return 0;
    memset(memory + inside, 0, length - inside);
    op_advance(op, length - inside);
    return 0;
}

/* Read one piece: tables, or data that is contiguous in the disk. */
static int read_step(struct op *op, uint64_t start, uint64_t length) {
    const struct plan *plan = &packed_of(op->handle)->plan;
    char *memory = (char *)op->buffer + (start - op->offset);
    uint64_t data = layout_data(&plan->layout), place;
    if (start >= data) {
        length = plan_find(plan, start - data, length, &place);
        return read_disk(op, place, length, memory);
    }
    length = min_u64(length, data - start);
    plan_fill(plan, start, length, memory);
    op_advance(op, length);
    return 0;
}

static int packed_read(struct op *op) {
    uint64_t end = op->offset + op->length, size = op->handle->image->size;
    if (end > size)
        return size_ends(op, size);
    for (uint64_t start; (start = op_position(op)) < end;) {
        int error = op_canceled(op) ? op_fail(op, IOU_SYS_NONE, ECANCELED) : read_step(op, start, end - start);
        if (error)
            return error;
        if (op_turn_is_over(op))
            break;
    }
    return 0;
}

/* It can only be read. */
static int packed_refuse(struct op *op) {
    return op_fail(op, IOU_SYS_NONE, ENOTSUP);
}

/* With a disk on a server, the fiber sleeps until the reply. Other disks need a worker: tables are computed, and reads
   are long. */
static bool packed_is_prompt(const struct op *op) {
    return op->handle->ops->remote;
}

static void packed_wake(const iou_handle *handle) {
    iou_handle *disk = packed_of(handle)->disk;
    disk->ops->wake(disk);
}

static void packed_end(iou_handle *handle) {
    struct packed *packed = packed_of(handle);
    if (handle_put(packed->disk))
        handle_end(packed->disk);
    plan_free(&packed->plan);
    image_destroy(&packed->image);
    free(packed);
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

static void init_packed(struct packed *packed, iou_handle *disk) {
    const struct image *image = disk->image;
    image_init(&packed->image, image->type, image->device, 0);
    packed->image.waits_for = image->waits_for;
    packed->image.grows = false;
    packed->image.pieces = image->pieces;
    packed->disk = disk;
    packed->ops = (struct image_ops){
        .remote = disk->ops->remote,
        .is_prompt = packed_is_prompt,
        .run =
            {
                [IOU_STAT] = packed_refuse,
                [IOU_READ] = packed_read,
                [IOU_FLUSH] = packed_refuse,
                [IOU_EXTENTS] = packed_refuse,
            },
        .wake = disk->ops->wake ? packed_wake : NULL,
        .free = packed_end,
    };
}

static int new_packed(iou_handle *disk, uint64_t size, uint32_t cluster_bits, iou_handle **result) {
    iou_handle *handle = calloc(1, sizeof(*handle));
    struct packed *packed = calloc(1, sizeof(*packed));
    char *path = strdup(disk->path);
    int error = handle && packed && path ? plan_begin(&packed->plan, size, cluster_bits) : -ENOMEM;
    if (error) {
        free(handle);
        free(packed);
        free(path);
        return error;
    }
    init_packed(packed, disk);
    *handle = (iou_handle){
        .ops = &packed->ops,
        .image = &packed->image,
        .refs = 1,
        .born = disk->born,
        .fd = -1,
        .tail_fd = -1,
        .unit = 1,
        .block_size = disk->block_size,
        .mem_align = disk->mem_align,
        .lock_unit = disk->lock_unit,
        .path = path,
    };
    *result = handle;
    return 0;
}

int iou_packed_new(iou_handle *disk, uint64_t size, uint32_t cluster_bits, iou_handle **result) {
    bool last;
    int error = handle_take(disk, IOU_READ, &last);
    if (!error && (error = new_packed(disk, size, cluster_bits, result)))
        last = handle_untake(disk, IOU_READ);
    if (last)
        handle_end(disk);
    return error;
}

int iou_packed_tell(iou_handle *handle, const uint64_t *ends, const uint8_t *flags, uint64_t count) {
    struct packed *packed = packed_of(handle);
    int error = handle_is_foreign(handle) ? -ECHILD : 0;
    for (uint64_t i = 0; !error && i < count; i++)
        error = plan_tell(&packed->plan, ends[i], !(flags[i] & IOU_EXTENT_ZERO));
    return error;
}

int iou_packed_place(iou_handle *handle, const void **map, uint64_t *map_bytes) {
    struct packed *packed = packed_of(handle);
    int error = handle_is_foreign(handle) ? -ECHILD : plan_place(&packed->plan);
    if (error)
        return error;
    packed->image.size = packed->plan.layout.clusters << packed->plan.layout.cluster_bits;
    *map = packed->plan.bits;
    *map_bytes = packed->plan.words * sizeof(*packed->plan.bits);
    return 0;
}

void iou_packed_free(iou_handle *handle) {
    if (handle_is_foreign(handle))
        return;
    handle->closing = true;
    handle_put(handle);
}
