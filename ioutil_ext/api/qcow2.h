/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Images in the format qcow2. An open image is a handle like that of a file: all operations of api/ioutil.h work on the
 * disk that the guest sees. cffi's cdef() reads this after api/ioutil.h, whose conventions apply.
 *
 * The engine never opens a name from a header. The caller passes all files of the chain, and the engine refuses an
 * image whose header names another backing file than the caller has approved.
 */

#ifndef IOUTIL_API_QCOW2_H
#define IOUTIL_API_QCOW2_H

#include <stdint.h>

#include "api/ioutil.h"

/* Whether the engine can serve an image. It decides this before it changes anything. */
typedef enum {
    IOU_QCOW2_NATIVE = 1, /* the engine serves the image */
    IOU_QCOW2_FALLBACK,   /* ENOTSUP: no damage was found, but the image has features that only qemu supports */
    IOU_QCOW2_REFUSE      /* EUCLEAN: the image is damaged, or hostile, or not what the caller expects */
} iou_qcow2_judgment;

/* Bytes of a reason, with the NUL at its end. */
enum { IOU_QCOW2_REASON = 160 };

/* Whether the bitmap that an open has named can be used. If it cannot, the image is open nevertheless. */
typedef enum {
    IOU_QCOW2_BITMAP_TOLD = 1, /* it can: extents with IOU_DIRTY report it */
    IOU_QCOW2_BITMAP_MISSING,  /* the image does not have it, or a program that keeps no bitmaps has written to it */
    IOU_QCOW2_BITMAP_IN_USE    /* a program that wrote to the image has not saved it: it lacks changes */
} iou_qcow2_bitmap;

typedef struct {
    uint32_t judgment; /* iou_qcow2_judgment, or 0 if the open failed for the reason in the completion */
    uint32_t layer;    /* the number of the file that the reason is about; 0 is the image itself */
    uint32_t bitmap;   /* iou_qcow2_bitmap, or 0 if none was named or the image is not open */
    char reason[IOU_QCOW2_REASON];
} iou_qcow2_verdict;

/* A file of a chain. */
typedef struct {
    const char *path;    /* absolute */
    const char *backing; /* the name in its header, as the caller has read it, or NULL if there is none */
    uint32_t raw;        /* 1 for a raw file or device, which can only be the last one */
    uint32_t reserved;
} iou_qcow2_layer;

/*
 * A chain of files, top first. To open an image without its backing chain, end the list earlier: the last file may name
 * a backing file, and ranges that it does not have then read as zeros.
 */
typedef struct {
    const iou_qcow2_layer *layers;
    uint32_t count;
    uint32_t reserved;
    const char *bitmap;         /* a bitmap of the top file, for extents with IOU_DIRTY, or NULL */
    iou_qcow2_verdict *verdict; /* filled before the completion */
} iou_qcow2_chain;

/* Most files of a chain, with the image. image/chain.py has the same limit for qemu-nbd. */
enum { IOU_QCOW2_MAX_LAYERS = 65 };

/* The counters of an image since it was opened. */
typedef struct {
    uint64_t cluster_size;  /* bytes */
    uint64_t allocated;     /* clusters that were given to data */
    uint64_t copied;        /* bytes that were written around the data of a request */
    uint64_t freed;         /* clusters that were freed */
    uint64_t frees_waiting; /* clusters that will be free after a flush, or when no operation can read them any more */
    uint64_t flushes;       /* flushes that wrote tables */
    uint64_t table_reads;   /* pieces of tables that were read */
    uint64_t table_bytes;   /* memory of the pieces of tables */
    uint64_t leaked;        /* clusters that nothing used when the image was opened for writing */
    uint64_t corrupt;       /* impossible entries that were found in tables */
} iou_qcow2_counts;

/*
 * Queue the open of an image. The flags may be IOU_WRITABLE, IOU_BUFFERED and IOU_SHARED. Without IOU_SHARED each file
 * is locked against other programs as qemu locks it, and this process may open the image only once for writing;
 * otherwise the open fails with EBUSY and IOU_SYS_LOCK. The caller keeps the chain, its texts and the verdict until the
 * completion was reaped. An open for writing reads all tables, and ends between two tables if it is cancelled. Returns
 * -EINVAL without a layer, with too many, or for a path that is not absolute; otherwise as iou_submit_open().
 */
int iou_submit_open_qcow2(iou_queue *queue, uint64_t cookie, const iou_qcow2_chain *chain, uint32_t flags,
                          iou_control *control);

/* Open an image in the calling thread, like iou_execute(). This is for tests and tools. Blocks. */
int iou_open_qcow2(const iou_qcow2_chain *chain, uint32_t flags, iou_control *control, iou_completion *completion);

/* The options of a new image. It has version 3, and reference counts of 16 bits. */
typedef struct {
    uint64_t size;              /* bytes of the disk; rounded up to 512 */
    uint32_t cluster_bits;      /* 9 to 21; qemu makes clusters of 2^16 bytes */
    uint32_t extended;          /* 1 for clusters with 32 subclusters, which must have at least 2^14 bytes */
    const char *backing;        /* the name of a backing file, or NULL */
    const char *backing_format; /* its format, if there is a name */
} iou_qcow2_options;

/*
 * Make an image in an empty file. The header is written last, so after a failure the file is no image. Blocks. Returns
 * 0, -EINVAL, -EFBIG if clusters are too small for the size, -ENAMETOOLONG, -EEXIST if the file is not empty, -ENOMEM,
 * or the error of a system call.
 */
int iou_create_qcow2(const char *path, const iou_qcow2_options *options);

/* ---- a disk as a file in the format ----------------------------------------------------------------------------- */

/*
 * A handle for a qcow2 file that exists nowhere: reads make it from the disk of another handle. The tables come first,
 * then the clusters with data, in the order of the disk. Before the first read, the caller says once where the disk has
 * data, so all reads of a handle see the same layout. Each read takes the data that the disk has at that time.
 */

/* Most clusters of such a disk. Its map has a bit for each, 4 MiB in all. */
enum { IOU_PACKED_CLUSTERS = 1 << 25 };

/*
 * Begin with a disk of `size` bytes, in clusters of 2^cluster_bits. Free the handle with iou_packed_free(). The handle
 * of the disk stays open until then, and until all lanes that read this handle have ended. Returns 0, -EINVAL, -EFBIG
 * if the disk has too many clusters, -ENOMEM, or -EBADF or -ECHILD as iou_submit().
 */
int iou_packed_new(iou_handle *disk, uint64_t size, uint32_t cluster_bits, iou_handle **result);

/*
 * Add the next extents of the disk. Each ends at its value in `ends`, is not empty, and is data unless its flags have
 * IOU_EXTENT_ZERO. A cluster without data takes no space in the file. Returns 0, -EINVAL if an extent ends before the
 * one before it or past the end of the disk, or -ECHILD.
 */
int iou_packed_tell(iou_handle *packed, const uint64_t *ends, const uint8_t *flags, uint64_t count);

/*
 * Lay the file out when all extents were added. From now on iou_handle_info() has the size of the file. *map, with
 * *map_bytes, is different for each layout that a disk of this size can have. Returns 0, -ENODATA if the extents do not
 * reach the end of the disk, -EINVAL, -ECHILD or -ENOMEM.
 */
int iou_packed_place(iou_handle *packed, const void **map, uint64_t *map_bytes);

void iou_packed_free(iou_handle *packed);

/* Get the counters of an image that one of these functions has opened. Returns 0, or -EINVAL for another image. */
int iou_qcow2_get_counts(iou_handle *handle, iou_qcow2_counts *counts);

#endif
