/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The format: numbers and layouts of qcow2, versions 2 and 3. Source: docs/interop/qcow2.rst of qemu. All numbers of
 * the file are big-endian.
 */

#ifndef IOUTIL_QCOW2_FORMAT_H
#define IOUTIL_QCOW2_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "api/qcow2.h"
#include "base/big_endian.h"

#define QCOW2_MAGIC 0x514649fbu

enum { MIN_CLUSTER_BITS = 9, MAX_CLUSTER_BITS = 21, MIN_EXTENDED_BITS = 14 };
enum { V2_HEADER = 72, V3_HEADER = 104, COMPRESSION_TYPE_AT = 104 };
enum { AUTOCLEAR_AT = 88, TABLE_GROUP_AT = 48, TABLE_GROUP = 12 };

/* The size of a disk is a multiple of a sector, and tables are written in sectors. */
enum { SECTOR = 512 };

/* Most bytes of the tables that the header names, as in qemu. */
#define MAX_L1_BYTES (UINT64_C(32) << 20)
#define MAX_REFCOUNT_TABLE_BYTES (UINT64_C(8) << 20)
enum { MAX_SNAPSHOTS = 65536, MAX_BACKING_NAME = 1023, MAX_FORMAT_NAME = 15 };

/* Limits of bitmaps, as in qemu: their number, the bytes of their directory and of one name, and the bytes of the disk
   for each bit. */
enum { MAX_BITMAPS = 65535, MAX_BITMAP_NAME = 1023, MIN_GRANULARITY_BITS = 9, MAX_GRANULARITY_BITS = 31 };
#define MAX_DIRECTORY_BYTES ((uint64_t)MAX_BITMAPS * 1024)
#define MAX_BITMAP_BYTES (UINT64_C(512) << 20)

/* The extensions of the header are in these first bytes. Known extensions take less than 1 KiB. */
#define MAX_HEADER_BYTES (UINT64_C(64) << 10)

enum {
    INCOMPAT_DIRTY = 1,
    INCOMPAT_CORRUPT = 2,
    INCOMPAT_DATA_FILE = 4,
    INCOMPAT_COMPRESSION = 8,
    INCOMPAT_EXTENDED = 16
};
#define INCOMPAT_KNOWN UINT64_C(0x1f)
enum { AUTOCLEAR_BITMAPS = 1 };

enum { COMPRESSION_ZLIB, COMPRESSION_ZSTD };

#define EXTENSION_END 0u
#define EXTENSION_BACKING_FORMAT 0xe2792acau
#define EXTENSION_FEATURE_NAMES 0x6803f857u
#define EXTENSION_BITMAPS 0x23852875u
#define EXTENSION_CRYPTO 0x0537be77u
#define EXTENSION_DATA_FILE 0x44415441u

/* Entries of tables. */
#define ENTRY_COPIED (UINT64_C(1) << 63)
#define ENTRY_COMPRESSED (UINT64_C(1) << 62)
#define ENTRY_ZERO UINT64_C(1)
#define ENTRY_OFFSET UINT64_C(0x00fffffffffffe00)
#define L1_RESERVED UINT64_C(0x7f000000000001ff)
#define L2_RESERVED UINT64_C(0x3f000000000001fe)
#define REFCOUNT_TABLE_RESERVED UINT64_C(0x1ff)

/* Bitmaps: the head of a row of the directory, its flags, and entries of tables. */
enum { BITMAP_ROW = 24, BITMAP_IN_USE = 1, BITMAP_DIRTY_TRACKING = 1 };
#define BITMAP_FLAGS_RESERVED UINT32_C(0xfffffff8)
#define BITMAP_ALL_ONES UINT64_C(1)
#define BITMAP_RESERVED UINT64_C(0xff000000000001fe)

/* Host offsets are below this. */
#define MAX_HOST (UINT64_C(1) << 56)

/* ---- header.c --------------------------------------------------------------------------------------------------- */

/* The header of an image (header.c). Its values are checked against the limits of the format and the file's length. */

struct header {
    uint32_t version, cluster_bits, refcount_order, header_length, compression;
    uint64_t size; /* bytes of the disk, in whole sectors, as in qemu */
    uint64_t l1_offset, refcount_table_offset, snapshots_offset;
    uint32_t l1_size; /* entries */
    uint32_t refcount_table_clusters, snapshots;
    uint64_t incompatible, autoclear;
    bool has_backing, has_bitmaps;
    uint32_t bitmaps;                           /* the number of bitmaps */
    uint64_t directory_offset, directory_bytes; /* of bitmaps; not checked yet */
    char backing[MAX_BACKING_NAME + 1];
};

/* Read a header. `data` is the beginning of the file, with as many bytes as header_bytes() returns, and `size` the size
   of the file. Returns IOU_QCOW2_NATIVE, or IOU_QCOW2_REFUSE with the reason. The time is linear in `length`. */
iou_qcow2_judgment header_parse(struct header *header, const uint8_t *data, uint64_t length, uint64_t size,
                                char reason[IOU_QCOW2_REASON]);

/* Return how many bytes header_parse() needs: the first cluster, or the whole file if it is shorter. `data` is the
   file's first 72 bytes, or all of a shorter file. */
uint64_t header_bytes(const uint8_t *data, uint64_t length, uint64_t size);

/* Clusters of a guest's disk, and entries of L2 tables; an entry has 8 or 16 bytes. */
static inline uint32_t header_entry_bits(const struct header *header) {
    return header->incompatible & INCOMPAT_EXTENDED ? 4 : 3;
}

#endif
