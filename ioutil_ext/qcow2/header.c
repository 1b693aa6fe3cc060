/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reading a header. It is data from an untrusted author, so each number is checked before it is used: cluster_bits
 * before a shift by it, lengths before a sum with them, tables against the length of the file. The parser of Python,
 * imageio_daemon/image/qcow2.py, refuses the same names.
 */

#include <stdarg.h>
#include <stdio.h>

#include "base/numbers.h"
#include "qcow2/format.h"

__attribute__((format(printf, 2, 3))) static iou_qcow2_judgment refuse(char *reason, const char *text, ...) {
    va_list values;
    va_start(values, text);
    vsnprintf(reason, IOU_QCOW2_REASON, text, values);
    va_end(values);
    return IOU_QCOW2_REFUSE;
}

uint64_t header_bytes(const uint8_t *data, uint64_t length, uint64_t size) {
    if (length < V2_HEADER)
        return length;
    uint32_t bits = get32(data + 20);
    uint64_t cluster = bits >= MIN_CLUSTER_BITS && bits <= MAX_CLUSTER_BITS ? UINT64_C(1) << bits : 512;
    return min_u64(cluster, size);
}

/* ---- fields ----------------------------------------------------------------------------------------------------- */

static void take_fields(struct header *header, const uint8_t *data) {
    header->version = get32(data + 4);
    header->cluster_bits = get32(data + 20);
    header->size = get64(data + 24) & ~UINT64_C(511);
    header->l1_size = get32(data + 36);
    header->l1_offset = get64(data + 40);
    header->refcount_table_offset = get64(data + 48);
    header->refcount_table_clusters = get32(data + 56);
    header->snapshots = get32(data + 60);
    header->snapshots_offset = get64(data + 64);
    header->refcount_order = 4;
    header->header_length = V2_HEADER;
}

static void take_v3_fields(struct header *header, const uint8_t *data) {
    header->incompatible = get64(data + 72);
    header->autoclear = get64(data + AUTOCLEAR_AT);
    header->refcount_order = get32(data + 96);
    header->header_length = get32(data + 100);
}

static iou_qcow2_judgment check_v3(struct header *header, const uint8_t *data, uint64_t length, char *reason) {
    if (length < V3_HEADER)
        return refuse(reason, "the file is shorter than its header");
    take_v3_fields(header, data);
    uint64_t unknown = header->incompatible & ~INCOMPAT_KNOWN, cluster = UINT64_C(1) << header->cluster_bits;
    if (header->header_length < V3_HEADER || header->header_length > cluster || header->header_length % 8)
        return refuse(reason, "the header has an invalid length of %u bytes", header->header_length);
    if (header->header_length > length)
        return refuse(reason, "the file is shorter than its header");
    if (unknown)
        return refuse(reason, "it has an unknown incompatible feature, bit %d", __builtin_ctzll(unknown));
    if (header->header_length > COMPRESSION_TYPE_AT)
        header->compression = data[COMPRESSION_TYPE_AT];
    if (header->compression > COMPRESSION_ZSTD ||
        !header->compression != !(header->incompatible & INCOMPAT_COMPRESSION))
        return refuse(reason, "the type of compression, %u, is unknown or not announced", header->compression);
    if (header->incompatible & INCOMPAT_EXTENDED && header->cluster_bits < MIN_EXTENDED_BITS)
        return refuse(reason, "clusters of 2^%u bytes have no subclusters", header->cluster_bits);
    if (header->refcount_order > 6)
        return refuse(reason, "reference counts have an invalid width of 2^%u bits", header->refcount_order);
    return IOU_QCOW2_NATIVE;
}

/* Whether a table lies inside the file, behind the first cluster. A cut last cluster counts as a whole one. */
static bool is_inside_file(const struct header *header, uint64_t offset, uint64_t bytes, uint64_t size) {
    uint64_t cluster = UINT64_C(1) << header->cluster_bits;
    return offset && is_aligned(offset, cluster) && offset < MAX_HOST && offset + bytes <= round_up(size, cluster);
}

static iou_qcow2_judgment check_tables(const struct header *header, uint64_t size, char *reason) {
    uint64_t cluster = UINT64_C(1) << header->cluster_bits, l1_bytes = 8 * (uint64_t)header->l1_size;
    uint64_t table_bytes = header->refcount_table_clusters * cluster;
    /* of guest, for each L1 entry: the entries of an L2 table, each a cluster */
    uint32_t l1_bits = 2 * header->cluster_bits - header_entry_bits(header);
    if (header->size > INT64_MAX - cluster)
        return refuse(reason, "the disk has an invalid size");
    if (l1_bytes > MAX_L1_BYTES || divide_up(header->size, UINT64_C(1) << l1_bits) > header->l1_size)
        return refuse(reason, "the L1 table has an invalid size of %u entries", header->l1_size);
    if (header->l1_size && !is_inside_file(header, header->l1_offset, l1_bytes, size))
        return refuse(reason, "the L1 table is not inside of the file");
    if (!header->refcount_table_clusters || table_bytes > MAX_REFCOUNT_TABLE_BYTES)
        return refuse(reason, "the table of reference counts has an invalid size of %u clusters",
                      header->refcount_table_clusters);
    if (!is_inside_file(header, header->refcount_table_offset, table_bytes, size))
        return refuse(reason, "the table of reference counts is not inside of the file");
    if (header->snapshots > MAX_SNAPSHOTS ||
        (header->snapshots && !is_inside_file(header, header->snapshots_offset, 1, size)))
        return refuse(reason, "the table of snapshots is too long, or not inside of the file");
    return IOU_QCOW2_NATIVE;
}

/* ---- names and extensions --------------------------------------------------------------------------------------- */

/* Whether a name contains what no real name does: NUL, control characters or line separators. In UTF-8 these include C2
   80 to C2 9F, and E2 80 A8 and A9. */
static bool has_control(const char *name, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)name[i], next = i + 1 < length ? (unsigned char)name[i + 1] : 0;
        unsigned char last = i + 2 < length ? (unsigned char)name[i + 2] : 0;
        if (byte < 0x20 || byte == 0x7f || (byte == 0xc2 && next >= 0x80 && next <= 0x9f) ||
            (byte == 0xe2 && next == 0x80 && (last == 0xa8 || last == 0xa9)))
            return true;
    }
    return false;
}

static iou_qcow2_judgment take_backing(struct header *header, const uint8_t *data, uint64_t length, char *reason) {
    uint64_t offset = get64(data + 8), cluster = UINT64_C(1) << header->cluster_bits;
    uint32_t size = get32(data + 16);
    if (!offset)
        return IOU_QCOW2_NATIVE; /* a size without an offset names nothing, for qemu, too */
    if (offset < header->header_length || !size || size > MAX_BACKING_NAME || !lies_in(offset, size, cluster))
        return refuse(reason, "the name of the backing file has an invalid place or length");
    if (!lies_in(offset, size, length))
        return refuse(reason, "the file ends before the name of its backing file");
    if (has_control((const char *)data + offset, size))
        return refuse(reason, "the name of the backing file has control characters");
    memcpy(header->backing, data + offset, size);
    header->has_backing = true;
    return IOU_QCOW2_NATIVE;
}

static iou_qcow2_judgment take_extension(struct header *header, uint32_t type, const uint8_t *data, uint32_t length,
                                         unsigned *seen, char *reason) {
    static const uint32_t KNOWN[] = {EXTENSION_BACKING_FORMAT, EXTENSION_FEATURE_NAMES, EXTENSION_BITMAPS,
                                     EXTENSION_CRYPTO, EXTENSION_DATA_FILE};
    unsigned known = 0;
    while (known < LENGTH(KNOWN) && KNOWN[known] != type)
        known++;
    if (known < LENGTH(KNOWN) && *seen & 1u << known)
        return refuse(reason, "an extension of the header is there twice");
    *seen |= 1u << known;
    if (type == EXTENSION_BITMAPS && length != 24)
        return refuse(reason, "the extension of bitmaps has %u bytes", length);
    if (type == EXTENSION_BITMAPS) {
        header->has_bitmaps = true;
        header->bitmaps = get32(data);
        header->directory_bytes = get64(data + 8);
        header->directory_offset = get64(data + 16);
    }
    if (type == EXTENSION_DATA_FILE && length > MAX_BACKING_NAME)
        return refuse(reason, "the name of the data file is too long");
    if (type == EXTENSION_BACKING_FORMAT && (length > MAX_FORMAT_NAME || has_control((const char *)data, length)))
        return refuse(reason, "the name of the backing format is too long, or has control characters");
    return IOU_QCOW2_NATIVE;
}

static iou_qcow2_judgment take_extensions(struct header *header, const uint8_t *data, uint64_t length, char *reason) {
    uint64_t offset = header->header_length, name = get64(data + 8);
    uint64_t end = min_u64(min_u64(name ? name : UINT64_C(1) << header->cluster_bits, MAX_HEADER_BYTES), length);
    unsigned seen = 0;
    while (offset + 8 <= end) {
        uint32_t type = get32(data + offset), bytes = get32(data + offset + 4);
        offset += 8;
        if (type == EXTENSION_END)
            return IOU_QCOW2_NATIVE;
        if (bytes > end - offset)
            return refuse(reason, "an extension of the header is longer than the header");
        iou_qcow2_judgment judgment = take_extension(header, type, data + offset, bytes, &seen, reason);
        if (judgment != IOU_QCOW2_NATIVE)
            return judgment;
        offset += round_up(bytes, 8);
    }
    return offset >= MAX_HEADER_BYTES ? refuse(reason, "the extensions of the header do not end") : IOU_QCOW2_NATIVE;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

iou_qcow2_judgment header_parse(struct header *header, const uint8_t *data, uint64_t length, uint64_t size,
                                char reason[IOU_QCOW2_REASON]) {
    memset(header, 0, sizeof(*header));
    if (length < 4 || get32(data) != QCOW2_MAGIC)
        return refuse(reason, "it is not in the format qcow2");
    if (length < V2_HEADER)
        return refuse(reason, "the file is shorter than its header");
    take_fields(header, data);
    if (header->version != 2 && header->version != 3)
        return refuse(reason, "its version of qcow2, %u, is unknown", header->version);
    if (header->cluster_bits < MIN_CLUSTER_BITS || header->cluster_bits > MAX_CLUSTER_BITS)
        return refuse(reason, "it has an invalid cluster size of 2^%u bytes", header->cluster_bits);
    if (get32(data + 32))
        return refuse(reason, "it is encrypted");
    iou_qcow2_judgment judgment = IOU_QCOW2_NATIVE;
    if (header->version == 3)
        judgment = check_v3(header, data, length, reason);
    if (judgment == IOU_QCOW2_NATIVE)
        judgment = check_tables(header, size, reason);
    if (judgment == IOU_QCOW2_NATIVE)
        judgment = take_backing(header, data, length, reason);
    return judgment == IOU_QCOW2_NATIVE ? take_extensions(header, data, length, reason) : judgment;
}
