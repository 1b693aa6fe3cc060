/* SPDX-License-Identifier: Apache-2.0 */

/* The system calls that touch an image: one replaceable table, EINTR retried, errors as -errno. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "api/ioutil.h"
#include "base/syscalls.h"

static int real_open(const char *path, int flags) {
    return open(path, flags);
}

static ssize_t real_pread(int fd, void *buffer, size_t length, int64_t offset) {
    return pread(fd, buffer, length, offset);
}

static ssize_t real_pwrite(int fd, const void *buffer, size_t length, int64_t offset) {
    return pwrite(fd, buffer, length, offset);
}

static int real_fallocate(int fd, int mode, int64_t offset, int64_t length) {
    return fallocate(fd, mode, offset, length);
}

static int real_blkzeroout(int fd, uint64_t offset, uint64_t length) {
    uint64_t range[2] = {offset, length};
    return ioctl(fd, BLKZEROOUT, range);
}

static int real_ftruncate(int fd, int64_t size) {
    return ftruncate(fd, size);
}

static int real_size(int fd, uint64_t *size) {
    struct stat st;
    if (fstat(fd, &st) == -1)
        return -1;
    if (S_ISBLK(st.st_mode))
        return ioctl(fd, BLKGETSIZE64, size);
    *size = (uint64_t)st.st_size;
    return 0;
}

static int real_write_back(int fd, int64_t offset, int64_t length) {
    return sync_file_range(fd, offset, length,
                           SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

static int real_drop_clean(int fd, int64_t offset, int64_t length) {
    errno = posix_fadvise(fd, offset, length, POSIX_FADV_DONTNEED);
    return errno ? -1 : 0;
}

static int64_t real_lseek(int fd, int64_t offset, int whence) {
    return lseek(fd, offset, whence);
}

/* Not known for block devices, and for file systems that report no size, such as a tmpfs without a limit. */
static int real_space(int fd, uint64_t *space) {
    struct statvfs fs;
    struct stat st;
    uint64_t free;
    if (fstat(fd, &st) == -1 || fstatvfs(fd, &fs) == -1)
        return -1;
    if (!S_ISREG(st.st_mode) || fs.f_blocks == 0 || __builtin_mul_overflow(fs.f_bavail, fs.f_frsize, &free) ||
        __builtin_add_overflow(free, (uint64_t)st.st_blocks * 512, space))
        *space = UINT64_MAX;
    return 0;
}

static struct flock at_byte(short type, int64_t byte) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

static int real_lock(int fd, int64_t byte) {
    struct flock lock = at_byte(F_RDLCK, byte);
    return fcntl(fd, F_OFD_SETLK, &lock);
}

static int real_locked(int fd, int64_t byte) {
    struct flock lock = at_byte(F_WRLCK, byte);
    return fcntl(fd, F_OFD_GETLK, &lock) == -1 ? -1 : lock.l_type != F_UNLCK;
}

#define REAL_CALLS                                                                                                     \
    {                                                                                                                  \
        .open = real_open,                                                                                             \
        .close = close,                                                                                                \
        .pread = real_pread,                                                                                           \
        .pwrite = real_pwrite,                                                                                         \
        .fallocate = real_fallocate,                                                                                   \
        .blkzeroout = real_blkzeroout,                                                                                 \
        .ftruncate = real_ftruncate,                                                                                   \
        .size = real_size,                                                                                             \
        .fdatasync = fdatasync,                                                                                        \
        .write_back = real_write_back,                                                                                 \
        .drop_clean = real_drop_clean,                                                                                 \
        .lseek = real_lseek,                                                                                           \
        .space = real_space,                                                                                           \
        .lock = real_lock,                                                                                             \
        .locked = real_locked,                                                                                         \
    }

static const iou_syscalls REAL = REAL_CALLS;
static iou_syscalls calls = REAL_CALLS;
static bool replaced;

#define REPLACE(member) calls.member = table && table->member ? table->member : REAL.member

bool sys_is_real(void) {
    return !replaced;
}

void iou_set_syscalls(const iou_syscalls *table) {
    replaced = table;
    REPLACE(open);
    REPLACE(close);
    REPLACE(pread);
    REPLACE(pwrite);
    REPLACE(fallocate);
    REPLACE(blkzeroout);
    REPLACE(ftruncate);
    REPLACE(size);
    REPLACE(fdatasync);
    REPLACE(write_back);
    REPLACE(drop_clean);
    REPLACE(lseek);
    REPLACE(space);
    REPLACE(lock);
    REPLACE(locked);
}

/* The value of a call that is repeated as long as a signal interrupts it, -errno if it fails. */
#define RETRY(type, call)                                                                                              \
    ({                                                                                                                 \
        type value_;                                                                                                   \
        do                                                                                                             \
            value_ = (call);                                                                                           \
        while (value_ == -1 && errno == EINTR);                                                                        \
        value_ == -1 ? (type) - errno : value_;                                                                        \
    })

int sys_open(const char *path, int flags) {
    return RETRY(int, calls.open(path, flags));
}

void sys_close(int fd) {
    calls.close(fd);
}

ssize_t sys_pread(int fd, void *buffer, size_t length, uint64_t offset) {
    return RETRY(ssize_t, calls.pread(fd, buffer, length, (int64_t)offset));
}

ssize_t sys_pwrite(int fd, const void *buffer, size_t length, uint64_t offset) {
    return RETRY(ssize_t, calls.pwrite(fd, buffer, length, (int64_t)offset));
}

int sys_fallocate(int fd, int mode, uint64_t offset, uint64_t length) {
    return RETRY(int, calls.fallocate(fd, mode, (int64_t)offset, (int64_t)length));
}

int sys_blkzeroout(int fd, uint64_t offset, uint64_t length) {
    return RETRY(int, calls.blkzeroout(fd, offset, length));
}

int sys_ftruncate(int fd, uint64_t size) {
    return RETRY(int, calls.ftruncate(fd, (int64_t)size));
}

int sys_size(int fd, uint64_t *size) {
    return RETRY(int, calls.size(fd, size));
}

int sys_fdatasync(int fd) {
    return RETRY(int, calls.fdatasync(fd));
}

int sys_write_back(int fd, uint64_t offset, uint64_t length) {
    return RETRY(int, calls.write_back(fd, (int64_t)offset, (int64_t)length));
}

int sys_drop_clean(int fd, uint64_t offset, uint64_t length) {
    return RETRY(int, calls.drop_clean(fd, (int64_t)offset, (int64_t)length));
}

int64_t sys_lseek(int fd, uint64_t offset, int whence) {
    return RETRY(int64_t, calls.lseek(fd, (int64_t)offset, whence));
}

int sys_space(int fd, uint64_t *space) {
    return RETRY(int, calls.space(fd, space));
}

int sys_lock(int fd, uint64_t byte) {
    return RETRY(int, calls.lock(fd, (int64_t)byte));
}

int sys_locked(int fd, uint64_t byte) {
    return RETRY(int, calls.locked(fd, (int64_t)byte));
}
