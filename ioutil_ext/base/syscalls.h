/* SPDX-License-Identifier: Apache-2.0 */

/* The system calls on images, which iou_set_syscalls() can replace. Each retries after EINTR, and returns its value or
   -errno. */

#ifndef IOUTIL_BASE_SYSCALLS_H
#define IOUTIL_BASE_SYSCALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Return whether the calls are the real ones, because iou_set_syscalls() has not replaced them. */
bool sys_is_real(void);

int sys_open(const char *path, int flags);
void sys_close(int fd); /* never retried: the descriptor is gone even if close() fails */
ssize_t sys_pread(int fd, void *buffer, size_t length, uint64_t offset);
ssize_t sys_pwrite(int fd, const void *buffer, size_t length, uint64_t offset);
int sys_fallocate(int fd, int mode, uint64_t offset, uint64_t length);
int sys_blkzeroout(int fd, uint64_t offset, uint64_t length);
int sys_ftruncate(int fd, uint64_t size);
int sys_size(int fd, uint64_t *size);
int sys_fdatasync(int fd);
int sys_write_back(int fd, uint64_t offset, uint64_t length); /* dirty pages, not metadata nor the disk's cache */
int sys_drop_clean(int fd, uint64_t offset, uint64_t length);
int64_t sys_lseek(int fd, uint64_t offset, int whence);
int sys_space(int fd, uint64_t *space);
int sys_lock(int fd, uint64_t byte);   /* takes a shared lock of the open file description */
int sys_locked(int fd, uint64_t byte); /* 1 if another open file description has a lock of the byte */

#endif
