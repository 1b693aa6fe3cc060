/* SPDX-License-Identifier: Apache-2.0 */

/* Numbers of the interface as text, for logs and metrics. */

#include "api/ioutil.h"
#include "base/numbers.h"

#define NAME(table, index) ((uint64_t)(index) < LENGTH(table) && (table)[index] ? (table)[index] : "unknown")

static const char *const SYSCALLS[] = {
    [IOU_SYS_NONE] = "none",
    [IOU_SYS_OPEN] = "open",
    [IOU_SYS_FSTAT] = "fstat",
    [IOU_SYS_STATX] = "statx",
    [IOU_SYS_IOCTL] = "ioctl",
    [IOU_SYS_PREAD] = "pread",
    [IOU_SYS_PWRITE] = "pwrite",
    [IOU_SYS_PUNCH_HOLE] = "fallocate(PUNCH_HOLE)",
    [IOU_SYS_ZERO_RANGE] = "fallocate(ZERO_RANGE)",
    [IOU_SYS_FALLOCATE] = "fallocate",
    [IOU_SYS_BLKZEROOUT] = "ioctl(BLKZEROOUT)",
    [IOU_SYS_FTRUNCATE] = "ftruncate",
    [IOU_SYS_FDATASYNC] = "fdatasync",
    [IOU_SYS_SYNC_FILE_RANGE] = "sync_file_range",
    [IOU_SYS_LSEEK] = "lseek",
    [IOU_SYS_MALLOC] = "malloc",
    [IOU_SYS_LOCK] = "fcntl(OFD_SETLK)",
    [IOU_SYS_DURABLE] = "durable",
    [IOU_SYS_SERVER] = "server",
};

static const char *const KINDS[] = {
    [IOU_OPEN] = "open", [IOU_CLOSE] = "close", [IOU_STAT] = "stat",   [IOU_READ] = "read",       [IOU_WRITE] = "write",
    [IOU_ZERO] = "zero", [IOU_TRIM] = "trim",   [IOU_FLUSH] = "flush", [IOU_EXTENTS] = "extents",
};

_Static_assert(IOU_METHOD_REMOTE + 1 == IOU_METHODS, "the last method is counted");
_Static_assert(LENGTH(SYSCALLS) == IOU_SYS_SERVER + 1 && LENGTH(KINDS) == IOU_EXTENTS + 1, "the last one has a name");

const char *iou_syscall_name(int32_t syscall) {
    return NAME(SYSCALLS, syscall);
}

const char *iou_kind_name(uint32_t kind) {
    return NAME(KINDS, kind);
}
