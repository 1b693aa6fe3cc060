/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Opening: all files, top first, each with its locks before anything of it is read; their headers; and, to write, all
 * tables of the top. Files below the top are only read.
 */

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/numbers.h"
#include "base/thread.h"
#include "qcow2/chain.h"
#include "qcow2/grace.h"
#include "qcow2/image.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"
#include "qcow2/open.h"
#include "qcow2/space.h"

/* The row of the files of a chain: their operations are called by layer.c. */
static const struct image_ops INNER_FILE = {0};

bool qcow2_is_chain(const iou_qcow2_chain *chain) {
    if (!chain || !chain->layers || !chain->verdict || chain->count < 1 || chain->count > IOU_QCOW2_MAX_LAYERS)
        return false;
    for (uint32_t i = 0; i < chain->count; i++) {
        const iou_qcow2_layer *layer = &chain->layers[i];
        if (!layer->path || layer->path[0] != '/' || (layer->raw && (i == 0 || i + 1 < chain->count || layer->backing)))
            return false;
    }
    return true;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static int open_file(struct op *op, const iou_qcow2_layer *layer, uint32_t flags, struct level *level) {
    struct op inner = {.kind = IOU_OPEN, .flags = flags | HANDLE_FORMAT, .path = (char *)(uintptr_t)layer->path};
    int error = handle_open(&inner, &INNER_FILE);
    if (error) {
        op->result.syscall = inner.result.syscall;
        return error;
    }
    level->file = inner.result.handle;
    level->size = round_up(layer_size(level->file), 512); /* behind its end, a raw file has zeros to the next sector */
    /* no other handle of this process may write to it: the locks do not show that */
    if (flags & IOU_WRITABLE && level->file->image->writers > 1)
        return op_fail(op, IOU_SYS_LOCK, EBUSY);
    return 0;
}

/* ---- headers ---------------------------------------------------------------------------------------------------- */

static int parse(struct op *op, struct qcow2 *q, iou_qcow2_verdict *verdict) {
    uint8_t head[V2_HEADER];
    uint64_t size = layer_size(q->file), length = min_u64(size, sizeof(head));
    int error = layer_read(op, q->file, head, 0, length);
    if (error)
        return error;
    length = header_bytes(head, length, size);
    uint8_t *data = malloc(length + 1);
    if (!data)
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    error = layer_read(op, q->file, data, 0, length);
    if (!error && header_parse(&q->header, data, length, size, verdict->reason) != IOU_QCOW2_NATIVE) {
        verdict->judgment = IOU_QCOW2_REFUSE;
        error = op_fail(op, IOU_SYS_NONE, EUCLEAN);
    }
    free(data);
    return error;
}

/* The header may have changed since the caller has read it. */
static int check_name(struct op *op, const struct header *header, const iou_qcow2_layer *layer,
                      iou_qcow2_verdict *verdict) {
    bool same =
        layer->backing ? header->has_backing && strcmp(layer->backing, header->backing) == 0 : !header->has_backing;
    return same ? 0 : judge(op, verdict, IOU_QCOW2_REFUSE, "the name of its backing file has changed");
}

static void set_geometry(struct qcow2 *q) {
    const struct header *header = &q->header;
    q->cluster_bits = header->cluster_bits;
    q->cluster = UINT64_C(1) << q->cluster_bits;
    q->entry_bits = header_entry_bits(header);
    q->table_bits = q->cluster_bits - q->entry_bits;
    q->slice_bits = q->cluster_bits < 12 ? q->cluster_bits : 12;
    q->count_bits = q->cluster_bits + 3 - header->refcount_order;
    q->table_offset = header->refcount_table_offset;
    q->table_clusters = header->refcount_table_clusters;
    q->refcount_room = q->table_clusters << (q->cluster_bits - 3);
}

static int read_table(struct op *op, struct qcow2 *q, uint64_t offset, uint64_t entries, uint64_t **table) {
    void *memory;
    if (posix_memalign(&memory, PAGE_UNIT, 8 * round_up(max_u64(entries, 1), 64)))
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    *table = memory;
    return layer_read(op, q->file, memory, offset, 8 * round_up(entries, 64));
}

/* Whether a file has much less data than its length. Its tables may have been made before the data, and name clusters
   that were never written. To look for holes takes a system call for each run of clusters, so other files are not
   asked. qemu has the same bounds (block/qcow2-refcount.c, for the number of clusters that are counted). */
static bool is_sparse(const iou_handle *file, uint64_t cluster) {
    struct stat st;
    if (file->image->type != IOU_FILE || fstat(file->fd, &st) == -1)
        return false;
    uint64_t has = (uint64_t)st.st_blocks * 512 / cluster, length = (uint64_t)st.st_size / cluster;
    return length >= has + 2 && length >= has + has / 9;
}

static struct qcow2 *new_image(iou_handle *file) {
    struct qcow2 *q = calloc(1, sizeof(*q));
    if (!q)
        return NULL;
    q->file = file;
    pthread_mutex_init(&q->lock, NULL);
    link_init(&q->space.waiters);
    link_init(&q->busy);
    link_init(&q->grace.waiters);
    sharing_init(&q->flushing.flushes);
    return q;
}

static int open_format(struct op *op, const iou_qcow2_layer *layer, bool writable, struct level *level,
                       iou_qcow2_verdict *verdict) {
    struct qcow2 *q = level->format = new_image(level->file);
    if (!q)
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    int error = parse(op, q, verdict);
    if (!error)
        error = judge_header(op, verdict, &q->header, writable);
    if (!error)
        error = check_name(op, &q->header, layer, verdict);
    if (error)
        return error;
    set_geometry(q);
    level->size = q->header.size;
    q->counts.cluster_size = q->cluster;
    q->sparse = is_sparse(level->file, q->cluster);
    if (cache_init(q) || bits_reserve(&q->l1_dirty, q->header.l1_size / 64 + 1))
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    return read_table(op, q, q->header.l1_offset, q->header.l1_size, &q->l1);
}

/* ---- for writing ------------------------------------------------------------------------------------------------ */

/* A last cluster that the end of the file cuts is made whole: tables are written in units of sectors. */
static int make_writable(struct op *op, struct qcow2 *q, iou_qcow2_verdict *verdict) {
    uint64_t size = layer_size(q->file);
    q->refcount_blocks = q->refcount_room;
    int error = read_table(op, q, q->table_offset, q->refcount_blocks, &q->refcount_table);
    if (!error && (bits_reserve(&q->refcount_dirty, q->refcount_blocks / 64 + 1) ||
                   bits_reserve(&q->refcount_new, q->refcount_blocks)))
        error = op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    if (!error)
        error = walk_run(q, op, verdict);
    if (!error && q->file->image->type == IOU_FILE && !is_aligned(size, q->cluster)) {
        error = layer_set_size(op, q->file, round_up(size, q->cluster));
        q->space.end = layer_size(q->file) >> q->cluster_bits;
    }
    return error;
}

/* ---- the handle ------------------------------------------------------------------------------------------------- */

static iou_handle *new_handle(const struct chain *chain, const char *path, bool writable) {
    const iou_handle *file = chain->levels[0].file;
    iou_handle *handle = calloc(1, sizeof(*handle));
    char *name = strdup(path);
    if (!handle || !name) {
        free(handle);
        free(name);
        return NULL;
    }
    *handle = (iou_handle){
        .ops = &QCOW2_IMAGE,
        .image = (struct image *)(uintptr_t)&chain->image,
        .refs = 1,
        .born = fork_generation(),
        .fd = file->fd, /* of the file's handle, which closes it */
        .tail_fd = -1,
        .writable = writable,
        .direct = file->direct,
        .unit = file->unit,
        .block_size = file->block_size,
        .mem_align = file->mem_align,
        .lock_unit = file->lock_unit,
        .birth = file->birth,
        .path = name,
    };
    return handle;
}

static int open_levels(struct op *op, struct chain *chain) {
    iou_qcow2_verdict *verdict = op->chain->verdict;
    uint32_t flags = op->flags;
    int error = 0;
    for (uint32_t i = 0; !error && i < chain->count; i++, flags &= ~(uint32_t)IOU_WRITABLE) {
        const iou_qcow2_layer *layer = &op->chain->layers[i];
        verdict->layer = i;
        error = open_file(op, layer, flags, &chain->levels[i]);
        if (!error && !layer->raw)
            error = open_format(op, layer, flags & IOU_WRITABLE, &chain->levels[i], verdict);
    }
    verdict->layer = error ? verdict->layer : 0;
    if (!error && op->flags & IOU_WRITABLE)
        error = make_writable(op, chain->levels[0].format, verdict);
    if (!error && op->chain->bitmap)
        error = bitmap_open(op, chain->levels[0].format, op->chain->bitmap, verdict);
    /* qemu looks for it in the files below, too */
    if (!error && verdict->bitmap == IOU_QCOW2_BITMAP_MISSING && chain->count > 1)
        error = judge(op, verdict, IOU_QCOW2_FALLBACK, "its bitmap may be in a file below it");
    return error;
}

/* An operation may wait for any file of the chain. */
static uint64_t devices_of(const struct chain *chain) {
    uint64_t devices[IOU_QCOW2_MAX_LAYERS];
    for (uint32_t i = 0; i < chain->count; i++)
        devices[i] = chain->levels[i].file->image->device;
    return image_devices(devices, chain->count);
}

int qcow2_open(struct op *op) {
    const iou_qcow2_chain *layers = op->chain;
    struct chain *chain = calloc(1, sizeof(*chain) + layers->count * sizeof(*chain->levels));
    *layers->verdict = (iou_qcow2_verdict){0};
    if (!chain)
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    chain->count = layers->count;
    image_init(&chain->image, IOU_QCOW2, 0, 0);
    image_begin_generations(&chain->image);
    link_init(&chain->decoding.waiters);
    link_init(&chain->merging.waiters);
    int error = open_levels(op, chain);
    if (!error)
        op->result.handle = new_handle(chain, op->path, op->flags & IOU_WRITABLE);
    if (!error && !op->result.handle)
        error = op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    if (error) {
        close_files(chain);
        return error;
    }
    const struct image *file = chain->levels[0].file->image;
    chain->over_backing = chain->levels[0].format->header.has_backing;
    chain->image.device = file->device;
    chain->image.waits_for = devices_of(chain);
    chain->image.inode = file->inode;
    chain->image.locked = file->locked;
    chain->image.size = chain->levels[0].size;
    chain->image.content = CONTENT_WRITTEN;
    chain->image.writers = op->flags & IOU_WRITABLE ? 1 : 0;
    layers->verdict->judgment = IOU_QCOW2_NATIVE;
    return 0;
}

int iou_qcow2_get_counts(iou_handle *handle, iou_qcow2_counts *counts) {
    if (handle->ops != &QCOW2_IMAGE || handle_is_foreign(handle))
        return -EINVAL;
    struct qcow2 *q = chain_of(handle)->levels[0].format;
    pthread_mutex_lock(&q->lock);
    *counts = q->counts;
    counts->frees_waiting = frees_pending(q);
    pthread_mutex_unlock(&q->lock);
    return 0;
}
