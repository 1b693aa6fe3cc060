/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Images in the format qcow2. An open image is a handle like that of a file: all operations of api/ioutil.h work on the
 * disk that the guest sees. cffi's cdef() reads this after api/ioutil.h, whose conventions apply.
 *
 * The engine opens no name that a header has: it gets all files of the chain, and refuses an image whose header names
 * another file below it than the caller has approved.
 */

#ifndef IOUTIL_API_QCOW2_H
#define IOUTIL_API_QCOW2_H

#include <stdint.h>

#include "api/ioutil.h"

/* What the engine makes of an image. It decides before it changes anything. */
typedef enum {
    IOU_QCOW2_NATIVE = 1, /* it serves the image */
    IOU_QCOW2_FALLBACK,   /* the image is sound as far as was seen, but has what only qemu can do: ENOTSUP */
    IOU_QCOW2_REFUSE      /* the image is damaged, or hostile, or not what the caller thinks: EUCLEAN */
} iou_qcow2_judgment;

/* Bytes of a reason, with the NUL at its end. */
enum { IOU_QCOW2_REASON = 160 };

/* What became of the bitmap that an open has named. Without it the image is open all the same. */
typedef enum {
    IOU_QCOW2_BITMAP_TOLD = 1, /* extents with IOU_DIRTY tell it */
    IOU_QCOW2_BITMAP_MISSING,  /* the image does not have it, or a program that keeps no bitmaps has written to it */
    IOU_QCOW2_BITMAP_IN_USE    /* a program that wrote to the image has left it behind: it lacks changes */
} iou_qcow2_bitmap;

typedef struct {
    uint32_t judgment; /* iou_qcow2_judgment; 0: the open failed otherwise, as the completion says */
    uint32_t layer;    /* which file the reason is about: 0 is the image itself */
    uint32_t bitmap;   /* iou_qcow2_bitmap; 0: none was named, or the image is not open */
    char reason[IOU_QCOW2_REASON];
} iou_qcow2_verdict;

/* A file of a chain. */
typedef struct {
    const char *path;    /* absolute */
    const char *backing; /* the name in its header, as the caller has read it; NULL: it names none */
    uint32_t raw;        /* 1: a raw file or device, which can only be the last one */
    uint32_t reserved;
} iou_qcow2_layer;

/*
 * A chain of files, top first. If the last one is qcow2 and names a backing file all the same, what it does not have
 * reads as zeros: the image without its backing chain.
 */
typedef struct {
    const iou_qcow2_layer *layers;
    uint32_t count;
    uint32_t reserved;
    const char *bitmap;         /* of the top, whose changes extents tell with IOU_DIRTY; NULL: none */
    iou_qcow2_verdict *verdict; /* filled before the completion */
} iou_qcow2_chain;

/* Most files of a chain, the image among them. storage/qemu/chain.py has the same limit for qemu-nbd. */
enum { IOU_QCOW2_MAX_LAYERS = 65 };

/* Of an open image, since it was opened. */
typedef struct {
    uint64_t cluster_size;  /* bytes */
    uint64_t allocated;     /* clusters that were given to data */
    uint64_t copied;        /* bytes that were written around the data of a request */
    uint64_t freed;         /* clusters that went back to the free ones */
    uint64_t frees_waiting; /* clusters that wait for a flush, or for those that may still read them */
    uint64_t flushes;       /* that wrote tables */
    uint64_t table_reads;   /* pieces of tables that were read */
    uint64_t table_bytes;   /* memory of the pieces of tables */
    uint64_t leaked;        /* clusters that nothing uses, found at the open for writing */
    uint64_t corrupt;       /* entries of tables that could not be right */
} iou_qcow2_counts;

/*
 * Queue the open of an image. flags: IOU_WRITABLE, IOU_BUFFERED, IOU_SHARED. Without IOU_SHARED each file is locked
 * against other programs as qemu locks it, and the image is open only once for writing in this process: EBUSY with
 * IOU_SYS_LOCK otherwise. The caller keeps the chain, its texts and the verdict until the completion was reaped. An
 * open for writing reads all tables; it ends between two of them when it is cancelled. -EINVAL: no layer, too many, or
 * a path that is not absolute; and as iou_submit_open().
 */
int iou_submit_open_qcow2(iou_queue *queue, uint64_t cookie, const iou_qcow2_chain *chain, uint32_t flags,
                          iou_control *control);

/* Open an image in the calling thread, for tests and tools, as iou_execute(). Blocks. */
int iou_open_qcow2(const iou_qcow2_chain *chain, uint32_t flags, iou_control *control, iou_completion *completion);

/* A new image: version 3, reference counts of 16 bits. */
typedef struct {
    uint64_t size;              /* bytes of the disk; rounded up to 512 */
    uint32_t cluster_bits;      /* 9 to 21; qemu makes clusters of 2^16 bytes */
    uint32_t extended;          /* 1: clusters have 32 subclusters, from 2^14 bytes on */
    const char *backing;        /* the name of a file below it; NULL: none */
    const char *backing_format; /* with a name */
} iou_qcow2_options;

/*
 * Make an image of an empty file. The header is written last: after a failure the file is no image. Blocks. -EINVAL;
 * -EFBIG: clusters are too small for the size; -ENAMETOOLONG; -EEXIST: the file is not empty; -ENOMEM, and errors of
 * system calls.
 */
int iou_create_qcow2(const char *path, const iou_qcow2_options *options);

/* ---- a disk as a file in the format ----------------------------------------------------------------------------- */

/*
 * A handle from which a qcow2 file can be read that nobody has written: it is made of the disk of another handle, as it
 * is read. Tables come first, then the clusters with data, in the order of the disk. Where there is data is told once,
 * before the first read; the data itself is that of the time of each read. All reads of one handle are of one file.
 */

/* Most clusters of such a disk: its map is a bit for each, 4 MiB. */
enum { IOU_PACKED_CLUSTERS = 1 << 25 };

/*
 * Begin with a disk of `size` bytes, in clusters of 2^cluster_bits. Free the handle with iou_packed_free(); the disk's
 * stays open until then, and until lanes have ended that read this one. -EINVAL; -EFBIG: it has too many clusters;
 * -EBADF, -ECHILD as iou_submit(); -ENOMEM.
 */
int iou_packed_new(iou_handle *disk, uint64_t size, uint32_t cluster_bits, iou_handle **result);

/*
 * Tell what follows in the disk: extents that end at `ends`, each of more than no bytes, and the flags of iou_extent,
 * of which IOU_EXTENT_ZERO counts. A cluster without data takes no space. -EINVAL: one goes back or past the end;
 * -ECHILD.
 */
int iou_packed_tell(iou_handle *packed, const uint64_t *ends, const uint8_t *flags, uint64_t count);

/*
 * End telling. The size in iou_handle_info() is that of the file from now on, and *map, of *map_bytes, tells its layout
 * from that of any other file of a disk of this size. -ENODATA: not all of the disk was told; -EINVAL, -ECHILD,
 * -ENOMEM.
 */
int iou_packed_place(iou_handle *packed, const void **map, uint64_t *map_bytes);

void iou_packed_free(iou_handle *packed);

/* Get the counters of an image that one of these functions has opened. -EINVAL: it is another one. */
int iou_qcow2_get_counts(iou_handle *handle, iou_qcow2_counts *counts);

#endif
