/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Making an empty image: header | table of reference counts | their blocks | L1 table, each cluster counted once. The
 * header comes last, when all else is on stable storage: a file without it is taken for nothing.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "base/syscalls.h"
#include "qcow2/format.h"
#include "qcow2/space.h"

enum { HEADER_LENGTH = 112, REFCOUNT_ORDER = 4 };

struct layout {
    uint64_t size, cluster, l1_entries;
    uint64_t table, blocks, l1, clusters; /* how many; clusters: of all */
};

/* The blocks count themselves and the table, which grow with them. */
static int lay_out(const iou_qcow2_options *options, struct layout *layout) {
    uint32_t bits = options->cluster_bits, entry_bits = options->extended ? 4 : 3;
    bool valid = bits >= (options->extended ? MIN_EXTENDED_BITS : MIN_CLUSTER_BITS) && bits <= MAX_CLUSTER_BITS;
    if (!valid || options->size > INT64_MAX - (UINT64_C(1) << MAX_CLUSTER_BITS))
        return -EINVAL;
    uint64_t cluster = UINT64_C(1) << bits, size = round_up(options->size, 512);
    *layout = (struct layout){.size = size, .cluster = cluster, .table = 1, .blocks = 1};
    layout->l1_entries = max_u64(1, divide_up(divide_up(size, cluster), cluster >> entry_bits));
    if (layout->l1_entries * 8 > MAX_L1_BYTES)
        return -EFBIG;
    layout->l1 = max_u64(1, divide_up(layout->l1_entries * 8, cluster));
    uint64_t before;
    do {
        before = layout->clusters;
        layout->clusters = 1 + layout->table + layout->blocks + layout->l1;
        layout->blocks = divide_up(layout->clusters << REFCOUNT_ORDER, 8 * cluster);
        layout->table = divide_up(8 * layout->blocks, cluster);
    } while (before != layout->clusters);
    return 0;
}

/* ---- content ---------------------------------------------------------------------------------------------------- */

static uint8_t *put_extension(uint8_t *at, uint32_t type, const char *data) {
    uint32_t length = (uint32_t)strlen(data);
    put32(at, type);
    put32(at + 4, length);
    memcpy(at + 8, data, length);
    return at + 8 + round_up(length, 8);
}

static int fill_header(uint8_t *header, const iou_qcow2_options *options, const struct layout *layout) {
    const char *name = options->backing, *format = options->backing_format;
    uint8_t *at = header + HEADER_LENGTH;
    put32(header, QCOW2_MAGIC);
    put32(header + 4, 3);
    put32(header + 20, options->cluster_bits);
    put64(header + 24, layout->size);
    put32(header + 36, (uint32_t)layout->l1_entries);
    put64(header + 40, (1 + layout->table + layout->blocks) * layout->cluster);
    put64(header + 48, layout->cluster);
    put32(header + 56, (uint32_t)layout->table);
    put64(header + 72, options->extended ? INCOMPAT_EXTENDED : 0);
    put32(header + 96, REFCOUNT_ORDER);
    put32(header + 100, HEADER_LENGTH);
    if (!name)
        return 0;
    if (!format || strlen(format) > MAX_FORMAT_NAME || strlen(name) > MAX_BACKING_NAME || !*name)
        return -EINVAL;
    uint64_t length = strlen(name), room = layout->cluster - HEADER_LENGTH;
    if (length + 8 + MAX_FORMAT_NAME + 1 + 8 > room)
        return -ENAMETOOLONG;
    at = put_extension(at, EXTENSION_BACKING_FORMAT, format) + 8; /* and the end of extensions, zeros */
    put64(header + 8, (uint64_t)(at - header));
    put32(header + 16, (uint32_t)length);
    memcpy(at, name, length);
    return 0;
}

static void fill_tables(uint8_t *tables, const struct layout *layout) {
    for (uint64_t i = 0; i < layout->blocks; i++)
        put64(tables + 8 * i, (1 + layout->table + i) * layout->cluster);
    for (uint64_t i = 0; i < layout->clusters; i++)
        refs_put_number(tables + layout->table * layout->cluster, i, REFCOUNT_ORDER, 1);
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static int write_whole(int fd, const uint8_t *data, uint64_t length, uint64_t offset) {
    for (uint64_t done = 0; done < length;) {
        ssize_t count = sys_pwrite(fd, data + done, length - done, offset + done);
        if (count <= 0)
            return count ? (int)count : -EIO;
        done += (uint64_t)count;
    }
    return 0;
}

static int write_file(int fd, const uint8_t *content, const struct layout *layout) {
    uint64_t tables = (layout->table + layout->blocks) * layout->cluster;
    int error = sys_ftruncate(fd, layout->clusters * layout->cluster);
    if (!error)
        error = write_whole(fd, content + layout->cluster, tables, layout->cluster);
    if (!error)
        error = sys_fdatasync(fd);
    if (!error)
        error = write_whole(fd, content, layout->cluster, 0);
    return error ? error : sys_fdatasync(fd);
}

int iou_create_qcow2(const char *path, const iou_qcow2_options *options) {
    struct layout layout;
    uint64_t size;
    int error = lay_out(options, &layout);
    if (error)
        return error;
    uint8_t *content = calloc(1 + layout.table + layout.blocks, layout.cluster);
    if (!content)
        return -ENOMEM;
    error = fill_header(content, options, &layout);
    fill_tables(content + layout.cluster, &layout);
    int fd = error ? error : sys_open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
    error = fd < 0 ? fd : sys_size(fd, &size);
    if (!error && size)
        error = -EEXIST;
    if (!error)
        error = write_file(fd, content, &layout);
    if (fd >= 0)
        sys_close(fd);
    free(content);
    return error;
}
