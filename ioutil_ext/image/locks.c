/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Locks against other programs. qemu's convention for images (docs/devel and block/file-posix of qemu describe it; the
 * tests compare it with qemu's programs): whoever uses an image has shared locks of single bytes that say what it does,
 * and what it does not let others do. Nobody locks exclusively: a program takes its locks, then looks for those of
 * others that contradict. The locks belong to an open file description (fcntl(2), F_OFD_SETLK), so they need one for
 * all handles of an image. With it a block device is opened exclusively, which mounts and device mapper respect.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/syscalls.h"
#include "image/locks.h"

/* What a program does with an image: the bit is added to the two bases. */
enum use { USE_READ = 0, USE_WRITE = 1, USE_RESIZE = 3 };
#define USED 100   /* the byte of a use that the holder of the lock makes */
#define DENIED 200 /* the byte of a use that the holder does not let others make */

/* Others may read an image while it is written here, if they put up with changes. */
static const enum use USES[] = {USE_READ, USE_WRITE, USE_RESIZE};
static const enum use DENIALS[] = {USE_WRITE, USE_RESIZE};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* A block device keeps its size. */
static bool applies(const struct image *image, enum use use) {
    return use != USE_RESIZE || image->grows;
}

/* Say what is done and denied. */
static int announce(const struct image *image) {
    int error = 0;
    for (size_t i = 0; !error && i < LENGTH(USES); i++)
        if (applies(image, USES[i]))
            error = sys_lock(image->lock_fd, USED + USES[i]);
    for (size_t i = 0; !error && i < LENGTH(DENIALS); i++)
        error = sys_lock(image->lock_fd, DENIED + DENIALS[i]);
    return error;
}

/* 1: another program denies what is done, or does what is denied. */
static int contradicted(const struct image *image) {
    int found = 0;
    for (size_t i = 0; !found && i < LENGTH(USES); i++)
        if (applies(image, USES[i]))
            found = sys_locked(image->lock_fd, DENIED + USES[i]);
    for (size_t i = 0; !found && i < LENGTH(DENIALS); i++)
        found = sys_locked(image->lock_fd, USED + DENIALS[i]);
    return found;
}

/* File systems without these locks: NFS without a lock service, some of FUSE. EINVAL: a kernel before Linux 3.15. */
static bool is_unsupported(int error) {
    return error == -ENOLCK || error == -EOPNOTSUPP || error == -ENOSYS || error == -EINVAL;
}

static int lock_bytes(struct op *op, struct image *image) {
    int error = announce(image);
    if (!error)
        error = contradicted(image);
    image->locked = !error;
    if (!error || is_unsupported(error))
        return 0;
    /* An exclusive lock of a byte (EAGAIN, EACCES) is not qemu's, but one all the same. */
    bool busy = error == 1 || error == -EAGAIN || error == -EACCES;
    return op_fail(op, IOU_SYS_LOCK, busy ? EBUSY : error);
}

/* Open the descriptor of the locks. Fails if the path names another file now. */
static int open_again(struct op *op, iou_handle *handle) {
    struct stat before, st;
    int exclusively = handle->image->type == IOU_BLOCK ? O_EXCL : 0;
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
    if (image->lock_holders == 0) {
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
