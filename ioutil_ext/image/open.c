/* SPDX-License-Identifier: Apache-2.0 */

/* Opening an image: its type, whether direct I/O works, and its alignment. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/numbers.h"
#include "base/syscalls.h"
#include "image/io.h"

/* statx(2), STATX_DIOALIGN, Linux 6.1; our own layout, because older C libraries do not know the members. */
#define DIOALIGN 0x2000u
struct statx_dioalign {
    uint32_t mask;
    uint8_t before[0x98 - sizeof(uint32_t)];
    uint32_t mem_align;
    uint32_t offset_align;
    uint8_t after[0x100 - 0xa0];
};
_Static_assert(sizeof(struct statx_dioalign) == 256, "struct statx has 256 bytes");

/* A larger st_blksize is advice for the size of transfers (NFS: 1 MiB), not the unit of the page cache. */
#define MAX_CACHE_UNIT (64 * KIB)

#define MIN_BLOCK_SIZE 512u
#define MAX_BLOCK_SIZE (64u << 10) /* of Linux; limits the memory for an edge */

static bool is_image(mode_t mode) {
    return S_ISREG(mode) || S_ISBLK(mode);
}

/*
 * Check the type before the open, which has effects on some devices (watchdogs, tapes) and blocks on FIFOs. If the file
 * is replaced between stat and open, O_NONBLOCK and the later fstat handle that.
 */
static int check_path(struct op *op) {
    struct stat st;
    if (stat(op->path, &st) == 0 && !is_image(st.st_mode))
        return op_fail(op, IOU_SYS_NONE, ENOTBLK);
    return 0;
}

static int open_flags(const struct op *op) {
    return (op->flags & IOU_WRITABLE ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
}

static int open_fd(struct op *op, iou_handle *handle) {
    handle->direct = !(op->flags & IOU_BUFFERED);
    int fd = -EINVAL;
    if (handle->direct)
        fd = sys_open(op->path, open_flags(op) | O_DIRECT);
    if (fd == -EINVAL || fd == -EOPNOTSUPP) {
        handle->direct = false;
        fd = sys_open(op->path, open_flags(op));
    }
    if (fd < 0)
        return op_fail(op, IOU_SYS_OPEN, fd);
    handle->fd = fd;
    return 0;
}

/* Clear O_NONBLOCK, which was for the open only, and O_DIRECT if the file system accepts but does not support it. */
static int settle_flags(struct op *op, iou_handle *handle) {
    int opened = fcntl(handle->fd, F_GETFL);
    int wanted = opened & ~(O_NONBLOCK | (handle->direct ? 0 : O_DIRECT));
    if (opened == -1)
        return op_fail(op, IOU_SYS_OPEN, errno);
    /* O_NONBLOCK has no effect on files and block devices, so only O_DIRECT must be cleared. */
    if (fcntl(handle->fd, F_SETFL, wanted) == -1 && opened & ~wanted & O_DIRECT)
        return op_fail(op, IOU_SYS_OPEN, errno);
    return 0;
}

/* ---- alignment -------------------------------------------------------------------------------------------------- */

static bool ask_dioalign(int fd, struct statx_dioalign *answer) {
    memset(answer, 0, sizeof(*answer));
    return syscall(SYS_statx, fd, "", AT_EMPTY_PATH, DIOALIGN, answer) == 0 && answer->mask & DIOALIGN;
}

/* Round up to a power of two; 0 stays 0. An absurd value from a file system does not overflow. */
static uint32_t power_of_two(uint32_t value) {
    uint32_t power = 1;
    while (power < value && power < (1u << 30))
        power <<= 1;
    return value ? power : 0;
}

/* Return the smallest unit with which a read at the start works. An empty file proves nothing: 4096. */
static uint32_t probe_alignment(int fd) {
    uint64_t size;
    char *memory;
    if (sys_size(fd, &size) < 0 || size == 0 || posix_memalign((void **)&memory, PAGE_UNIT, 2 * PAGE_UNIT))
        return PAGE_UNIT;
    ssize_t got = sys_pread(fd, memory + MIN_BLOCK_SIZE, MIN_BLOCK_SIZE, 0);
    free(memory);
    return got < 0 ? PAGE_UNIT : MIN_BLOCK_SIZE;
}

static void align_file(iou_handle *handle) {
    struct statx_dioalign dio;
    if (handle->direct && ask_dioalign(handle->fd, &dio)) {
        handle->direct = dio.offset_align != 0 && dio.mem_align != 0;
        handle->block_size = power_of_two(dio.offset_align);
        handle->mem_align = power_of_two(dio.mem_align);
    } else if (handle->direct) {
        handle->block_size = handle->mem_align = probe_alignment(handle->fd);
    }
    if (!handle->direct) {
        handle->block_size = PAGE_UNIT;
        handle->mem_align = 1;
    }
}

/* A device that does not report its block size gets 4096, which is also a multiple of smaller blocks. */
static void align_device(iou_handle *handle) {
    struct statx_dioalign dio;
    int logical;
    if (ioctl(handle->fd, BLKSSZGET, &logical) == -1 || logical <= 0)
        logical = PAGE_UNIT;
    handle->block_size = power_of_two((uint32_t)logical);
    handle->mem_align = handle->direct ? handle->block_size : 1;
    if (handle->direct && ask_dioalign(handle->fd, &dio) && dio.mem_align && dio.offset_align) {
        handle->block_size = (uint32_t)max_u64(handle->block_size, power_of_two(dio.offset_align));
        handle->mem_align = power_of_two(dio.mem_align);
    }
}

static int find_alignment(struct op *op, iou_handle *handle, const struct stat *st) {
    if (S_ISREG(st->st_mode))
        align_file(handle);
    else
        align_device(handle);
    /* A part of a buffer that starts at a block must be aligned in memory too. */
    uint64_t block = max_u64(MIN_BLOCK_SIZE, max_u64(handle->block_size, handle->mem_align));
    uint64_t unit = max_u64(block, max_u64(PAGE_UNIT, (uint64_t)sysconf(_SC_PAGESIZE)));
    if (st->st_blksize > 0 && (uint64_t)st->st_blksize <= MAX_CACHE_UNIT)
        unit = max_u64(unit, power_of_two((uint32_t)st->st_blksize));
    if (block > MAX_BLOCK_SIZE)
        return op_fail(op, IOU_SYS_STATX, EINVAL);
    handle->block_size = (uint32_t)block;
    handle->unit = handle->direct || S_ISBLK(st->st_mode) ? handle->block_size : 1;
    handle->lock_unit = (uint32_t)unit;
    return settle_flags(op, handle);
}

/* ---- the handle ------------------------------------------------------------------------------------------------- */

/* Open the buffered descriptor, for blocks that the end of the file cuts. Fails if the path names another file now. */
static int open_tail(struct op *op, iou_handle *handle, const struct stat *st) {
    struct stat tail;
    if (!handle->writable || !handle->direct || !S_ISREG(st->st_mode))
        return 0;
    int fd = sys_open(op->path, open_flags(op));
    if (fd < 0)
        return op_fail(op, IOU_SYS_OPEN, fd);
    handle->tail_fd = fd;
    if (fstat(fd, &tail) == -1)
        return op_fail(op, IOU_SYS_FSTAT, errno);
    if (tail.st_dev != st->st_dev || tail.st_ino != st->st_ino)
        return op_fail(op, IOU_SYS_OPEN, ESTALE);
    return 0;
}

static int open_descriptors(struct op *op, iou_handle *handle, struct stat *st) {
    int error = open_fd(op, handle);
    if (error)
        return error;
    if (fstat(handle->fd, st) == -1)
        return op_fail(op, IOU_SYS_FSTAT, errno);
    if (!is_image(st->st_mode))
        return op_fail(op, IOU_SYS_NONE, ENOTBLK);
    error = find_alignment(op, handle, st);
    return error ? error : open_tail(op, handle, st);
}

void iou_file_birth(int fd, iou_birth *birth) {
    struct statx answer;
    long version = 0; /* file systems write an int */
    *birth = (iou_birth){0};
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &answer) == -1 || !(answer.stx_mask & STATX_BTIME) ||
        answer.stx_btime.tv_sec < 0)
        return;
    birth->time = (uint64_t)answer.stx_btime.tv_sec * 1000000000u + answer.stx_btime.tv_nsec;
    if (ioctl(fd, FS_IOC_GETVERSION, &version) == 0)
        birth->version = (uint32_t)version;
}

static bool is_in_memory(int fd) {
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

static int join_image(struct op *op, iou_handle *handle, const struct stat *st) {
    bool is_file = S_ISREG(st->st_mode);
    if (is_file)
        iou_file_birth(handle->fd, &handle->birth);
    handle->image = is_file ? image_get(IOU_FILE, st->st_dev, st->st_ino) : image_get(IOU_BLOCK, st->st_rdev, 0);
    if (!handle->image)
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    handle->image->in_memory = is_file && is_in_memory(handle->fd);
    handle->flush_failures = handle->image->flush_failures;
    pthread_mutex_init(&handle->syncing.lock, NULL);
    sharing_init(&handle->syncing.calls);
    atomic_fetch_add(handle->direct ? &handle->image->direct_handles : &handle->image->buffered_handles, 1);
    if (handle->writable)
        handle->image->writers++;
    return 0;
}

/*
 * The image is in the registry already: a write of another handle that starts before the result is stored sets
 * CONTENT_WRITTEN, and the result is not stored then.
 */
void look_at_content(iou_handle *handle) {
    struct image *image = handle->image;
    int unknown = CONTENT_UNKNOWN;
    if (image->content == CONTENT_WRITTEN)
        return;
    if (image->type == IOU_FILE && sys_lseek(handle->fd, 0, SEEK_DATA) == -ENXIO)
        atomic_compare_exchange_strong(&image->content, &unknown, CONTENT_ZERO);
    else
        image->content = CONTENT_WRITTEN;
}

static int set_up_handle(struct op *op, iou_handle *handle) {
    struct stat st;
    uint64_t size;
    int error = open_descriptors(op, handle, &st);
    if (!error)
        error = join_image(op, handle, &st);
    if (!error && (handle->writable || op->flags & HANDLE_FORMAT) && !(op->flags & IOU_SHARED))
        error = locks_hold(op, handle);
    if (error)
        return error;
    error = size_refresh(op, handle, &size);
    if (!error)
        look_at_content(handle);
    return error;
}

static void discard(iou_handle *handle) {
    if (handle->image) {
        handle_close(handle);
    } else {
        if (handle->fd != -1)
            sys_close(handle->fd);
        if (handle->tail_fd != -1)
            sys_close(handle->tail_fd);
    }
    free(handle->path);
    free(handle);
}

int handle_open(struct op *op, const struct image_ops *ops) {
    int error = check_path(op);
    if (error)
        return error;
    iou_handle *handle = calloc(1, sizeof(*handle));
    if (!handle)
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    handle->ops = ops;
    handle->fd = handle->tail_fd = -1;
    handle->writable = op->flags & IOU_WRITABLE;
    handle->born = fork_generation();
    atomic_init(&handle->refs, 1);
    handle->path = strdup(op->path);
    error = handle->path ? set_up_handle(op, handle) : op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    if (error) {
        discard(handle);
        return error;
    }
    op->result.handle = handle;
    return 0;
}
