/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Locks against other programs. qemu's convention for images (docs/devel and block/file-posix of qemu describe it; the
 * tests compare it with qemu's programs): each program that uses an image holds shared locks of single bytes, which
 * stand for the uses that it makes, and for those that it denies to others. No lock is exclusive: a program takes its
 * locks, then looks for conflicting locks of others. The locks belong to an open file description (fcntl(2),
 * F_OFD_SETLK), so all handles of an image share one. With it, a block device is also opened exclusively, which mounts
 * and device mapper respect.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/syscalls.h"
#include "image/io.h"

/* What a program does with an image: bits, whose numbers are added to the two bases. */
enum { READS = 1 << 0, WRITES = 1 << 1, RESIZES = 1 << 3, USES = 4 };
#define USED 100   /* the byte of a use that the holder of the lock makes */
#define DENIED 200 /* the byte of a use that the holder denies to others */

static int set_locks(int fd, uint64_t base, unsigned uses) {
    int error = 0;
    for (unsigned use = 0; !error && use < USES; use++)
        if (uses & 1u << use)
            error = sys_lock(fd, base + use);
    return error;
}

/* 1: another program has locked one of them. */
static int find_locks(int fd, uint64_t base, unsigned uses) {
    int found = 0;
    for (unsigned use = 0; !found && use < USES; use++)
        if (uses & 1u << use)
            found = sys_locked(fd, base + use);
    return found;
}

/* Other programs may read an image while it is written here, if they tolerate changes. A block device keeps its
   size. */
static int lock_descriptor(int fd, bool writes, bool grows) {
    unsigned uses = !writes ? READS : grows ? READS | WRITES | RESIZES : READS | WRITES;
    unsigned denied = WRITES | RESIZES;
    int error = set_locks(fd, USED, uses);
    if (!error)
        error = set_locks(fd, DENIED, denied);
    if (!error)
        error = find_locks(fd, DENIED, uses);
    if (!error)
        error = find_locks(fd, USED, denied);
    /* An exclusive lock of a byte (EAGAIN, EACCES) is not qemu's, but it is a lock. */
    return error == 1 || error == -EAGAIN || error == -EACCES ? -EBUSY : error;
}

/* File systems without these locks: NFS without a lock service, some of FUSE. EINVAL: a kernel before Linux 3.15. */
static bool is_unsupported(int error) {
    return error == -ENOLCK || error == -EOPNOTSUPP || error == -ENOSYS || error == -EINVAL;
}

int iou_lock(int fd, uint32_t writes) {
    struct stat st;
    if (fstat(fd, &st) == -1)
        return -errno;
    int error = lock_descriptor(fd, writes, S_ISREG(st.st_mode));
    return is_unsupported(error) ? -ENOLCK : error;
}

/* The use for which an image is locked. */
enum { TO_WRITE_RAW, TO_READ, TO_WRITE_ALONE };

static int wanted_use(const struct op *op) {
    if (!(op->flags & HANDLE_FORMAT))
        return TO_WRITE_RAW;
    return op->flags & IOU_WRITABLE ? TO_WRITE_ALONE : TO_READ;
}

static int lock_bytes(struct op *op, struct image *image) {
    int error = lock_descriptor(image->lock_fd, image->lock_use != TO_READ, image->grows);
    image->locked = !error;
    return error && !is_unsupported(error) ? op_fail(op, IOU_SYS_LOCK, error) : 0;
}

/* Open the descriptor of the locks. Fails if the path names another file now. */
static int open_again(struct op *op, iou_handle *handle) {
    struct stat before, st;
    bool writes = handle->image->lock_use != TO_READ;
    int exclusively = writes && handle->image->type == IOU_BLOCK ? O_EXCL : 0;
    int fd = sys_open(op->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | exclusively);
    if (fd < 0)
        return op_fail(op, IOU_SYS_OPEN, fd);
    handle->image->lock_fd = fd;
    if (fstat(handle->fd, &before) == -1 || fstat(fd, &st) == -1)
        return op_fail(op, IOU_SYS_FSTAT, errno);
    if (before.st_dev != st.st_dev || before.st_ino != st.st_ino)
        return op_fail(op, IOU_SYS_OPEN, ESTALE);
    return 0;
}

static void close_lock(struct image *image) {
    if (image->lock_fd != -1)
        sys_close(image->lock_fd);
    image->lock_fd = -1;
    image->locked = false;
}

int locks_hold(struct op *op, iou_handle *handle) {
    struct image *image = handle->image;
    int error = 0;
    pthread_mutex_lock(&image->lock_lock);
    int use = wanted_use(op);
    if (image->lock_holders && (use != image->lock_use || use == TO_WRITE_ALONE)) {
        error = op_fail(op, IOU_SYS_LOCK, EBUSY);
    } else if (image->lock_holders == 0) {
        image->lock_use = use;
        error = open_again(op, handle);
        if (!error)
            error = lock_bytes(op, image);
        if (error)
            close_lock(image);
    }
    handle->locks = !error;
    image->lock_holders += handle->locks;
    pthread_mutex_unlock(&image->lock_lock);
    return error;
}

void locks_release(iou_handle *handle) {
    struct image *image = handle->image;
    if (!handle->locks)
        return;
    handle->locks = false;
    pthread_mutex_lock(&image->lock_lock);
    if (--image->lock_holders == 0)
        close_lock(image);
    pthread_mutex_unlock(&image->lock_lock);
}
