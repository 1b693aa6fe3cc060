/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The storage engine as Python sees it. Two programs read the headers of this folder: the C compiler, and cffi's
 * cdef(), for which build_ioutil.py removes the preprocessor lines. So they have only guards, includes and
 * declarations.
 *
 * Units: sizes and offsets are bytes, times are nanoseconds unless the name says otherwise. Errors: functions that can
 * fail return 0 or a negative errno; completions carry a positive errno and the system call that failed. Threads: every
 * function may be called from any thread, unless its comment says otherwise. None blocks on storage, except
 * iou_execute() and iou_engine_stop().
 */

#ifndef IOUTIL_API_IOUTIL_H
#define IOUTIL_API_IOUTIL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct iou_engine iou_engine; /* worker threads and their queues; normally one in a process */
typedef struct iou_queue iou_queue;   /* completions of one event loop, and its eventfd */
typedef struct iou_handle iou_handle; /* an open image; one for each transfer */

/*
 * The kinds of operations. Writes, zeros and trims that overlap run one after the other, in order of submission. A long
 * operation gives up its thread to others between its steps. After success, done is the length, if there is one
 * (extents: the bytes that the records cover). The engine itself sets these errors: ENODATA with IOU_SYS_NONE, for a
 * read past the end, or extents of an image that has got shorter (with a system call, ENODATA is the kernel's error for
 * a medium that cannot be read); ENOSPC, for a write or zero past the end of a device, of which nothing was written;
 * ECANCELED; ENOTBLK, see iou_submit_open(). All other errors are the kernel's.
 */
typedef enum {
    IOU_OPEN = 1, /* path -> handle */
    IOU_CLOSE,    /* ends the handle; the last reference closes the descriptors */
    IOU_STAT,     /* refreshes size and reads_zero of iou_handle_info() */
    IOU_READ,     /* fills the whole buffer, or fails */
    IOU_WRITE,    /* writes the whole buffer, or fails; a file grows as needed */
    IOU_ZERO,     /* makes the range read as zeros, or fails; a file grows as needed */
    IOU_TRIM,     /* frees whole blocks inside the range where the storage can */
    IOU_FLUSH,    /* puts all changes that completed before on stable storage; after a failure, each flush fails. With
                     a length, the record of durable ranges gets that range only */
    IOU_EXTENTS   /* fills the buffer with iou_extent records */
} iou_kind;

typedef enum {
    IOU_FUA = 1,       /* write, zero, trim: on stable storage at success */
    IOU_ALLOCATE = 2,  /* zero: the range stays provisioned */
    IOU_FAST_ONLY = 4, /* zero: if this needs data I/O, fail with ENOTSUP and change neither content nor size */
    IOU_WRITABLE = 8,  /* open: for reading and writing; without it, only for reading */
    IOU_BUFFERED = 16, /* open: do not try direct I/O */
    IOU_SPACE = 32,    /* stat: also ask the file system how much data the image may have */
    IOU_SHARED = 64,   /* open: take no locks against other programs; see iou_submit_open() */
    IOU_LAYERS = 128,  /* extents: also report IOU_EXTENT_HOLE, where the storage reports holes */
    IOU_DIRTY = 256,   /* extents: also report IOU_EXTENT_DIRTY, where the storage has a bitmap */
    IOU_WHOLE = 512,   /* read: send one request to the server that has the image */
    IOU_DENSE = 1024,  /* read: the server need not look for holes, if the protocol allows that */
    IOU_NOW = 2048     /* read, extents: fail if there is no connection to the server that has the image */
} iou_flag;

/* The method by which a range was zeroed, in order of expense. A request with several reports the most expensive. */
typedef enum {
    IOU_METHOD_NONE = 0,
    IOU_METHOD_PUNCH_HOLE,
    IOU_METHOD_ZERO_RANGE,
    IOU_METHOD_ALLOCATE,
    IOU_METHOD_PUNCH_AND_ALLOCATE,
    IOU_METHOD_BLKZEROOUT,
    IOU_METHOD_WRITE,
    IOU_METHOD_REMOTE /* the server of the image zeroed it, by its own method */
} iou_method;

/* The number of methods, and of the system calls that zero, from IOU_SYS_PUNCH_HOLE on. */
enum { IOU_METHODS = 8, IOU_ZEROING_CALLS = 4 };

/* The system call that failed. iou_syscall_name() returns its name for the log. */
typedef enum {
    IOU_SYS_NONE = 0, /* a check of the engine has failed, before any system call */
    IOU_SYS_OPEN,
    IOU_SYS_FSTAT,
    IOU_SYS_STATX,
    IOU_SYS_IOCTL,
    IOU_SYS_PREAD,
    IOU_SYS_PWRITE,
    IOU_SYS_PUNCH_HOLE,
    IOU_SYS_ZERO_RANGE,
    IOU_SYS_FALLOCATE,
    IOU_SYS_BLKZEROOUT,
    IOU_SYS_FTRUNCATE,
    IOU_SYS_FDATASYNC,
    IOU_SYS_SYNC_FILE_RANGE,
    IOU_SYS_LSEEK,
    IOU_SYS_MALLOC,
    IOU_SYS_LOCK,
    IOU_SYS_DURABLE, /* the record of durable ranges could not be kept (api/durable.h): the image has not failed */
    IOU_SYS_SERVER   /* no system call: the server of the image has failed */
} iou_syscall;

typedef enum { IOU_FILE = 1, IOU_BLOCK = 2, IOU_REMOTE = 3, IOU_QCOW2 = 4 } iou_type;

/* Most worker threads of an engine. */
enum { IOU_MAX_THREADS = 1024 };

/* Operations that ran longer are logged, so that slow storage is noticed before it hangs. */
enum { IOU_SLOW_SECONDS = 10 };

/*
 * Progress and cancellation of one request, shared by all operations of the request. C adds bytes to done, and Python
 * reads it. Python sets canceled to 1; C checks it between steps and ends the operation with ECANCELED. The caller
 * keeps it alive until the completions of all its operations were reaped.
 */
typedef struct {
    uint64_t done;
    uint32_t canceled;
    uint32_t reserved;
} iou_control;

typedef struct {
    uint64_t cookie;    /* as submitted */
    iou_handle *handle; /* open: the new handle at success, else NULL */
    uint64_t done;      /* bytes finished by this operation, also if it failed */
    uint64_t elapsed;   /* ns from the start to the end */
    uint64_t queued;    /* ns from submission to the start */
    int32_t error;      /* 0 or a positive errno */
    int32_t syscall;    /* iou_syscall that failed */
    int32_t method;     /* zero: iou_method */
    uint32_t count;     /* extents: records filled */
    uint64_t size;      /* for ENODATA with IOU_SYS_NONE the size of the image; for IOU_SPACE see iou_syscalls; for
                           IOU_SYS_SERVER the number of the failure, see api/nbd_client.h */
    /* zero, trim: the errnos for which system calls, from IOU_SYS_PUNCH_HOLE on, were given up, or 0. Only the first
       operation of an image that gives a call up reports it. */
    uint16_t given_up[IOU_ZEROING_CALLS];
} iou_completion;

/* The properties of an extent. Without a flag it is data. Files and devices report only IOU_EXTENT_ZERO, for ranges
   without allocated data. */
typedef enum {
    IOU_EXTENT_ZERO = 1, /* it reads as zeros */
    IOU_EXTENT_HOLE = 2, /* neither the image nor a file below it has data or zeros there */
    IOU_EXTENT_DIRTY = 4 /* a bitmap marks it as changed. In lanes of NBD this is the first bitmap, and the next higher
                            bits are the flags of the others */
} iou_extent_flag;

/* An extent begins where the one before it ends, the first one at the operation's offset. */
typedef struct {
    uint64_t end;
    uint64_t flags; /* iou_extent_flag */
} iou_extent;

typedef struct {
    uint64_t start;
    uint64_t end; /* the offset of the byte after the range */
} iou_range;

/* This distinguishes a file from an earlier one with the same inode number. Files that were made in the same clock tick
   of 4 ms have the same time. */
typedef struct {
    uint64_t time;    /* when the file was made, in ns since 1970; 0 if unknown, and for a device */
    uint32_t version; /* the generation of the inode, as in NFS handles (FS_IOC_GETVERSION); 0 if unknown */
} iou_birth;

/* The properties of an open image, as far as they are known. Capabilities only change from 1 to 0. */
typedef struct {
    uint64_t size;   /* the largest size seen; refreshed by open, IOU_STAT and each operation that grows the file */
    uint64_t device; /* st_dev of a file, st_rdev of a block device; for a chain of qcow2 files, that of the top file */
    uint64_t inode;  /* st_ino of a file, else 0; type, device and inode identify the image */
    uint64_t step;   /* most bytes of the next zeroing call */
    uint32_t type;   /* iou_type */
    uint32_t writable;
    uint32_t direct;     /* direct I/O is in use */
    uint32_t block_size; /* unaligned edges are rounded to it: a power of two, at least 512 */
    uint32_t mem_align;  /* best alignment of buffer addresses */
    uint32_t can_punch_hole;
    uint32_t can_zero_range;
    uint32_t can_fallocate;
    uint32_t can_blkzeroout;
    uint32_t can_seek_hole;
    uint32_t reads_zero;   /* at each open and IOU_STAT the image was one hole, and this process has written nothing */
    uint32_t flush_failed; /* a flush has failed since this handle was opened, so each later one fails */
    uint32_t locked;       /* the image is locked against other programs, by this handle or another one */
    uint32_t writers;      /* handles of this process that may write to the image */
    iou_birth birth;
} iou_info;

/* An operation that runs. */
typedef struct {
    uint64_t cookie;
    uint64_t offset;
    uint64_t length;
    uint64_t elapsed; /* ns since the operation started */
    uint32_t kind;
    uint32_t reserved;
    char path[256]; /* cut to fit, ends with NUL */
} iou_running;

typedef struct {
    uint32_t threads; /* alive now */
    uint32_t busy;    /* operations that run in these threads and in those of lanes, so it may be more than `threads` */
    uint32_t queued;  /* operations that wait for a thread, a quota, their next turn, or earlier overlapping changes */
} iou_stats;

/* Return 0 if direct I/O of lanes can be asynchronous, or the negative errno with which the kernel refuses it. Then
   workers do this I/O. */
int iou_async_io(void);

/*
 * Start an engine with at most `max_threads` workers, 1 to IOU_MAX_THREADS, which start on demand. A worker ends when
 * it has had no work for `idle_ms`. The images of one device, or with files on the same set of devices, get at most a
 * quarter of the workers, but at least one. Returns 0, -EINVAL or -ENOMEM.
 */
int iou_engine_new(uint32_t max_threads, uint32_t idle_ms, iou_engine **result);

/*
 * Stop an engine: refuse new operations, end queued ones with ECANCELED except closes, which run, and wait at most
 * `timeout_ms` for running ones. Blocks. Returns 0 if all have ended, else the number of operations that still run;
 * their threads and memory stay until the next call. Afterwards use iou_execute() to close handles. Returns -ECHILD in
 * a forked child.
 */
int iou_engine_stop(iou_engine *engine, uint32_t timeout_ms);

/* Free an engine when iou_engine_stop() has returned 0 and its queues are freed. Returns 0, -EBUSY before that, or
   -ECHILD. */
int iou_engine_free(iou_engine *engine);

/* Fill at most max records with the operations that run now, the longest first. Returns how many, or -ECHILD. */
int iou_engine_running(iou_engine *engine, iou_running *records, uint32_t max);

void iou_engine_stats(iou_engine *engine, iou_stats *stats);

/* End queued operations whose control is canceled. They do not wait for a thread. Returns how many, or -ECHILD. */
int iou_cancel_queued(iou_engine *engine);

/* Make a completion queue. Returns 0, -EMFILE, -ENOMEM or -ECHILD. */
int iou_queue_new(iou_engine *engine, iou_queue **result);

/* Free a queue. Returns 0, -ECHILD, or -EBUSY while operations that were submitted to it have not been reaped. */
int iou_queue_free(iou_queue *queue);

/* Return the queue's eventfd, which is readable while there are completions. It is non-blocking and close-on-exec, and
   belongs to the queue. */
int iou_queue_fd(iou_queue *queue);

/*
 * Move at most `max` completions into the array. Returns how many, or -ECHILD. Clears the eventfd if none is left, so a
 * caller that gets fewer than `max` may wait for the eventfd. Only the thread of the queue's loop may call this.
 */
int iou_reap(iou_queue *queue, iou_completion *completions, uint32_t max);

/*
 * Queue an open. The path is absolute, has at most 4095 bytes, and is copied. The flags may be IOU_WRITABLE,
 * IOU_BUFFERED and IOU_SHARED. Opening anything but a regular file or a block device fails with ENOTBLK.
 *
 * IOU_WRITABLE without IOU_SHARED locks the image against other programs. The open then fails with EBUSY and
 * IOU_SYS_LOCK if another program has locked the image as qemu does, and with EBUSY and IOU_SYS_OPEN if a device is
 * mounted or part of another device. All handles of an image share its locks. Handles that only read need none.
 *
 * The open counts for the device of the path's mount, so a mount that hangs does not stop opens of other paths.
 * `control` may be NULL; see iou_submit(). An open that has begun is not canceled. Returns 0, -EINVAL, -ENAMETOOLONG,
 * -ENOMEM, -ESHUTDOWN after iou_engine_stop(), or -ECHILD in a forked child.
 */
int iou_submit_open(iou_queue *queue, uint64_t cookie, const char *path, uint32_t flags, iou_control *control);

/*
 * Queue an operation. The caller keeps `buffer` and `control` alive and untouched until the completion was reaped; the
 * engine keeps the handle. The buffer has `length` bytes; for IOU_EXTENTS it has `buffer_size` bytes. Any alignment of
 * the buffer works, but one that is aligned like the offset (to info.mem_align) is not copied.
 *
 * IOU_EXTENTS fills as many records as fit with the extents of the range, in order, from `offset` on, without gaps.
 * Adjacent records differ in flags. `buffer_size` of a read or write may be 0. IOU_CLOSE cannot be canceled, and
 * operations that were submitted before it still run.
 *
 * Returns 0 or a negative errno. -EINVAL means an unknown kind or flag, a range past 2^63 - 1, a missing or short
 * buffer, or a write on a read-only handle; -EBADF that IOU_CLOSE was submitted before, while the handle exists.
 * -ENOMEM, -ESHUTDOWN and -ECHILD are as for iou_submit_open().
 */
int iou_submit(iou_queue *queue, uint64_t cookie, iou_handle *handle, uint32_t kind, uint32_t flags, uint64_t offset,
               uint64_t length, void *buffer, uint64_t buffer_size, iou_control *control);

/* Get the properties of an image, without a system call. The handle must not have been closed. */
void iou_handle_info(iou_handle *handle, iou_info *info);

/*
 * Return the image's generation. It changes when a write, zero or trim through any handle starts or ends, and is 0
 * while one runs. Results about the content, such as extents, are valid as long as the generation is the same and not
 * 0. This process never uses a value again, not even when the image is closed and opened again.
 */
uint64_t iou_handle_generation(iou_handle *handle);

/*
 * Run an operation in the calling thread, by the same code but without an engine. This is for tests and tools. For
 * IOU_OPEN, `buffer` is the path. Blocks on storage, and on earlier changes that it overlaps. Returns 0 or a negative
 * errno; *completion has the details.
 */
int iou_execute(iou_handle *handle, uint32_t kind, uint32_t flags, uint64_t offset, uint64_t length, void *buffer,
                uint64_t buffer_size, iou_control *control, iou_completion *completion);

/*
 * Lock the file or device of a descriptor that is open for reading, as qemu does. With `writes` the caller may write to
 * it; without, nobody else may write while the caller reads. Closing the descriptor and its copies unlocks it. Blocks
 * on the file system. Returns 0, -EBUSY if another program uses the file in a way that excludes this, -ENOLCK if the
 * file system has no such locks, or another negative errno.
 */
int iou_lock(int fd, uint32_t writes);

/* Get the birth of a descriptor's file. Blocks on the file system. */
void iou_file_birth(int fd, iou_birth *birth);

/*
 * The rule by which users share memory, connections, tasks and decoders. Return whether a user that has `used` of a
 * resource may have `more` while `left` is free: after that, the user must have at most twice as much as is free. So
 * some is always free for other users. A single user has at most two thirds of the whole, and n users together have 2 n
 * parts of 2 n + 1 (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998).
 * For most resources, a user gets a first piece without this rule.
 */
int iou_may_have(uint64_t used, uint64_t more, uint64_t left);

/* Return whether all `length` bytes are zero. Any alignment works. Runs at memory speed. */
int iou_is_zero(const void *buffer, uint64_t length);

/* Return a name for the log: static text, never NULL. */
const char *iou_syscall_name(int32_t syscall);
const char *iou_kind_name(uint32_t kind);

/*
 * The system calls on images, which tests replace for fault injection. Each fails like the system call of its name,
 * with -1 and errno. A NULL member stands for the real call, and iou_set_syscalls(NULL) restores all. Change the table
 * only while no operation runs.
 */
typedef struct {
    int (*open)(const char *path, int flags);
    int (*close)(int fd);
    ssize_t (*pread)(int fd, void *buffer, size_t length, int64_t offset);
    ssize_t (*pwrite)(int fd, const void *buffer, size_t length, int64_t offset);
    int (*fallocate)(int fd, int mode, int64_t offset, int64_t length);
    int (*blkzeroout)(int fd, uint64_t offset, uint64_t length);
    int (*ftruncate)(int fd, int64_t size);
    int (*size)(int fd, uint64_t *size); /* fstat st_size, or BLKGETSIZE64 */
    int (*fdatasync)(int fd);
    int (*write_back)(int fd, int64_t offset, int64_t length); /* sync_file_range, to the end */
    int (*drop_clean)(int fd, int64_t offset, int64_t length); /* posix_fadvise DONTNEED */
    int64_t (*lseek)(int fd, int64_t offset, int whence);
    /* Bytes that are free for an unprivileged user, plus those that the file has; UINT64_MAX if not known. */
    int (*space)(int fd, uint64_t *space);
    int (*lock)(int fd, int64_t byte);   /* F_OFD_SETLK, F_RDLCK */
    int (*locked)(int fd, int64_t byte); /* F_OFD_GETLK for F_WRLCK: 1 or 0 */
} iou_syscalls;

void iou_set_syscalls(const iou_syscalls *table);

#endif
