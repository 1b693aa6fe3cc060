/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Making an empty image: header | table of reference counts | their blocks | L1 table, each cluster counted once. The
 * header comes last, when all else is on stable storage, because a file without it is no image. The L1 table has only
 * zeros. It is written so that it has space before it is needed.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "base/syscalls.h"
#include "qcow2/layout.h"

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
    layout_fill_header(layout, header);
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

static void fill_tables(uint8_t *content, const struct layout *layout) {
    for (uint64_t sector = layout->cluster / SECTOR; sector < layout_l1(layout) / SECTOR; sector++)
        layout_fill_counts(layout, sector, content + sector * SECTOR);
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
    uint64_t tables = (layout->table + layout->blocks + layout->l1) * layout->cluster;
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
    int error = layout_begin(&layout, options->size, options->cluster_bits, options->extended);
    if (error)
        return error;
    layout_place(&layout, 0, 0);
    uint8_t *content = calloc(1, layout_l1(&layout) + layout.l1 * layout.cluster);
    if (!content)
        return -ENOMEM;
    error = fill_header(content, options, &layout);
    fill_tables(content, &layout);
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
