/* SPDX-License-Identifier: Apache-2.0 */

/* The header of an image (header.c): what it says, checked against the limits of the format and the file's length. */

#ifndef IOUTIL_QCOW2_HEADER_H
#define IOUTIL_QCOW2_HEADER_H

#include <stddef.h>

#include "api/qcow2.h"
#include "qcow2/format.h"

struct header {
    uint32_t version, cluster_bits, refcount_order, header_length, compression;
    uint64_t size; /* bytes of the disk, whole sectors of 512 bytes, as qemu has it */
    uint64_t l1_offset, refcount_table_offset, snapshots_offset;
    uint32_t l1_size; /* entries */
    uint32_t refcount_table_clusters, snapshots;
    uint64_t incompatible, compatible, autoclear;
    bool has_backing, has_bitmaps, has_unknown; /* unknown: an extension */
    uint32_t bitmaps;                           /* how many */
    uint64_t directory_offset, directory_bytes; /* of bitmaps; not checked yet */
    char backing[MAX_BACKING_NAME + 1], backing_format[MAX_FORMAT_NAME + 1];
};

/*
 * Read a header. data: the file's first bytes, as many as header_bytes() says. size: of the file. Returns
 * IOU_QCOW2_NATIVE, or IOU_QCOW2_REFUSE with the reason. Time is linear in length.
 */
iou_qcow2_judgment header_parse(struct header *header, const uint8_t *data, uint64_t length, uint64_t size,
                                char reason[IOU_QCOW2_REASON]);

/* How many bytes header_parse() needs: the first cluster, or the file if it is shorter. data: its first 72 bytes or
   fewer, if the file is so short. */
uint64_t header_bytes(const uint8_t *data, uint64_t length, uint64_t size);

/* Clusters of a guest's disk, and entries of L2 tables; an entry has 8 or 16 bytes. */
static inline uint32_t header_entry_bits(const struct header *header) {
    return header->incompatible & INCOMPAT_EXTENDED ? 4 : 3;
}

#endif
