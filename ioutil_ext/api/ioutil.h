/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The storage engine as Python sees it. Two programs read the headers of this room: the C compiler, and cffi's cdef(),
 * for which build_ioutil.py takes out the preprocessor lines. So they have only guards, includes and declarations.
 *
 * Units: sizes and offsets are bytes, times are nanoseconds unless the name says otherwise.
 * Errors: functions that can fail return 0 or a negative errno; completions carry a positive errno and the
 * system call that failed.
 * Threads: every function may be called from any thread, unless its comment says otherwise. None blocks on
 * storage, except iou_execute() and iou_engine_stop().
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
    IOU_FAST_ONLY = 4, /* zero: only without data I/O, else ENOTSUP, and neither content nor size has changed */
    IOU_WRITABLE = 8,  /* open: for reading and writing; without it, reading only */
    IOU_BUFFERED = 16, /* open: do not try direct I/O */
    IOU_SPACE = 32,    /* stat: ask the file system how much data the image may have, too */
    IOU_SHARED = 64,   /* open: take no locks against other programs; see iou_submit_open() */
    IOU_LAYERS = 128,  /* extents: tell IOU_EXTENT_HOLE, too, where the storage knows it */
    IOU_DIRTY = 256,   /* extents: tell IOU_EXTENT_DIRTY, too, where the storage knows it */
    IOU_WHOLE = 512,   /* read: by one request to the server that has the image */
    IOU_DENSE = 1024,  /* read: the server need not look for holes, where it can do without */
    IOU_NOW = 2048     /* read, extents: not if the server that has the image had to be connected to first */
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
    IOU_SYS_DURABLE, /* not of the image: its record of durable ranges could not be kept, see api/durable.h */
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
    uint64_t size;      /* ENODATA with IOU_SYS_NONE: the size of the image; IOU_SPACE: see iou_syscalls;
                           IOU_SYS_SERVER: the number of the failure, see api/nbd_client.h */
    /* zero, trim: errnos of the system calls that are given up, from IOU_SYS_PUNCH_HOLE on. Only the first operation of
       an image that gives one up reports it; 0: nothing new. */
    uint16_t given_up[IOU_ZEROING_CALLS];
} iou_completion;

/* What an extent is told to be; 0: data. Files and devices tell IOU_EXTENT_ZERO only: no data is allocated. */
typedef enum {
    IOU_EXTENT_ZERO = 1, /* it reads as zeros */
    IOU_EXTENT_HOLE = 2, /* neither the image nor what is below it has anything there */
    IOU_EXTENT_DIRTY = 4 /* a bitmap marks it as changed. In lanes of NBD: the first bitmap; the flags of the others are
                            the next higher bits */
} iou_extent_flag;

/* An extent begins where the one before it ends, the first one at the operation's offset. */
typedef struct {
    uint64_t end;
    uint64_t flags; /* iou_extent_flag */
} iou_extent;

typedef struct {
    uint64_t start;
    uint64_t end; /* of the byte after it */
} iou_range;

/* What tells a file from an earlier one with the same inode number. Files of one clock tick of 4 ms have one time. */
typedef struct {
    uint64_t time;    /* ns since 1970: when the file was made; 0: unknown, or a device */
    uint32_t version; /* of the inode number: the generation that NFS handles have, FS_IOC_GETVERSION; 0: unknown */
} iou_birth;

/* The properties of an open image, as far as they are known. Capabilities only change from 1 to 0. */
typedef struct {
    uint64_t size;   /* the largest size seen; refreshed by open, IOU_STAT and each operation that grows the file */
    uint64_t device; /* st_dev of a file, st_rdev of a block device; of a chain of qcow2 files, that of the top */
    uint64_t inode;  /* of a file, else 0; type, device and inode identify the image */
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
    uint32_t flush_failed; /* a flush has failed since this handle was opened: each later one fails */
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
    uint32_t busy;    /* operations that run: in these threads, and in those of lanes; it may be larger */
    uint32_t queued;  /* operations that wait for a thread, a quota, their next turn, or earlier overlapping changes */
} iou_stats;

/* Return 0 if direct I/O of lanes can be asynchronous, or the -errno for which the kernel refuses it: workers do it
   then. */
int iou_async_io(void);

/*
 * Start an engine. max_threads: 1 to IOU_MAX_THREADS workers, which start on demand. idle_ms: a worker without work for
 * so long ends. One device gets at most a quarter of the workers (at least one); so do the images whose files are on
 * the same several devices. -EINVAL, -ENOMEM.
 */
int iou_engine_new(uint32_t max_threads, uint32_t idle_ms, iou_engine **result);

/*
 * Stop an engine: refuse new operations, end queued ones with ECANCELED (but closes run), and wait at most timeout_ms
 * for those that run. Blocks. Returns 0 if all have ended, else the number of operations that still run; their threads
 * and memory stay until the next call. Afterwards iou_execute() closes handles. -ECHILD in a forked child.
 */
int iou_engine_stop(iou_engine *engine, uint32_t timeout_ms);

/* Free a stopped engine whose iou_engine_stop() returned 0 and whose queues are freed. -EBUSY otherwise, -ECHILD. */
int iou_engine_free(iou_engine *engine);

/* Fill at most max records with the operations that run now, the longest first. Returns how many, or -ECHILD. */
int iou_engine_running(iou_engine *engine, iou_running *records, uint32_t max);

void iou_engine_stats(iou_engine *engine, iou_stats *stats);

/* End queued operations whose control is canceled. They do not wait for a thread. Returns how many, or -ECHILD. */
int iou_cancel_queued(iou_engine *engine);

/* Make a completion queue. -EMFILE, -ENOMEM, -ECHILD. */
int iou_queue_new(iou_engine *engine, iou_queue **result);

/* Free a queue. -EBUSY while operations submitted through it have not been reaped, -ECHILD. */
int iou_queue_free(iou_queue *queue);

/* The queue's eventfd, non-blocking, close-on-exec; readable while there are completions. Owned by the queue. */
int iou_queue_fd(iou_queue *queue);

/*
 * Move at most max completions into the array. Returns how many, or -ECHILD. Clears the eventfd if none is left: a
 * reader that gets fewer than max may wait for the eventfd. Only the thread of the queue's loop calls it.
 */
int iou_reap(iou_queue *queue, iou_completion *completions, uint32_t max);

/*
 * Queue an open of path (absolute, at most 4095 bytes, copied). flags: IOU_WRITABLE, IOU_BUFFERED, IOU_SHARED. The open
 * of anything but a regular file or a block device fails with ENOTBLK. With IOU_WRITABLE the image is locked against
 * other programs, unless IOU_SHARED is given: EBUSY with IOU_SYS_LOCK if one has locked it as qemu does, EBUSY with
 * IOU_SYS_OPEN if a device is mounted or part of another one. All handles of an image share its locks, and those for
 * reading, only, need none. The open counts for the device of the path's mount, so that
 * a mount that hangs does not stop opens elsewhere. control may be NULL, see iou_submit(). An open that has begun is
 * not canceled. -EINVAL, -ENAMETOOLONG, -ENOMEM, -ESHUTDOWN after stop, -ECHILD in a forked child.
 */
int iou_submit_open(iou_queue *queue, uint64_t cookie, const char *path, uint32_t flags, iou_control *control);

/*
 * Queue an operation. The caller keeps buffer (length bytes; IOU_EXTENTS: buffer_size bytes) and control alive and
 * untouched until the completion was reaped; the engine keeps the handle. Any alignment of the buffer works; a buffer
 * that is aligned like the offset (to info.mem_align) is not copied. IOU_EXTENTS fills as many records as fit with the
 * extents of offset..offset+length, in order, from offset on, without gaps; adjacent records differ in flags.
 * buffer_size of a read or write may be 0. IOU_CLOSE cannot be canceled; operations submitted before it still run.
 * -EINVAL: unknown kind or flags, a range past 2^63 - 1, a missing or short buffer, a write on a read-only handle.
 * -EBADF: after IOU_CLOSE, while the handle exists. -ENOMEM, -ESHUTDOWN, -ECHILD as above.
 */
int iou_submit(iou_queue *queue, uint64_t cookie, iou_handle *handle, uint32_t kind, uint32_t flags, uint64_t offset,
               uint64_t length, void *buffer, uint64_t buffer_size, iou_control *control);

/* Get the properties of an image, without a system call. The handle must not have been closed. */
void iou_handle_info(iou_handle *handle, iou_info *info);

/*
 * Return the image's generation. It changes when a write, zero or trim of any handle starts or ends; it is 0 while one
 * runs. Results about the content (extents) are valid as long as it is the same and not 0. A value is never used again
 * in this process, also if the image is closed and opened again.
 */
uint64_t iou_handle_generation(iou_handle *handle);

/*
 * Run an operation in the calling thread, for tests and tools: the same code, without an engine. IOU_OPEN: buffer is
 * the path. Blocks on storage, and on earlier changes that it overlaps. Returns 0 or a negative errno; *completion has
 * the details.
 */
int iou_execute(iou_handle *handle, uint32_t kind, uint32_t flags, uint64_t offset, uint64_t length, void *buffer,
                uint64_t buffer_size, iou_control *control, iou_completion *completion);

/*
 * Lock the file or device of a descriptor that is open for reading, as qemu does: to read it while nobody writes to it,
 * or, writes: to write to it. Closing the descriptor and its copies unlocks it. Blocks on the file system. -EBUSY:
 * another program uses it in a way that contradicts; -ENOLCK: the file system has no such locks; or another -errno.
 */
int iou_lock(int fd, uint32_t writes);

/* Look at the file of a descriptor. Blocks on the file system. */
void iou_file_birth(int fd, iou_birth *birth);

/*
 * Whether a user of what many need, who has `used` of it, may have `more` while so much is left: if he then has at most
 * twice as much as is left. So some is always left for another one. A single user has at most two thirds of all, and n
 * users share 2 n parts of 2 n + 1. (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
 * Switches", 1998.) It is the rule for memory, connections, tasks and decoders; for most, a first piece is always free.
 */
int iou_may_have(uint64_t used, uint64_t more, uint64_t left);

/* Whether all length bytes are zero. Any alignment; runs at memory speed. */
int iou_is_zero(const void *buffer, uint64_t length);

/* Static text, never NULL. */
const char *iou_syscall_name(int32_t syscall);
const char *iou_kind_name(uint32_t kind);

/*
 * The system calls on images, which tests replace for fault injection. Each behaves like the system call of its name:
 * -1 and errno. A NULL member means the real call; iou_set_syscalls(NULL) restores all. Not to be changed while
 * operations run.
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
    /* Bytes that are free for an unprivileged user, and those that the file has; UINT64_MAX: not known. */
    int (*space)(int fd, uint64_t *space);
    int (*lock)(int fd, int64_t byte);   /* F_OFD_SETLK, F_RDLCK */
    int (*locked)(int fd, int64_t byte); /* F_OFD_GETLK for F_WRLCK: 1 or 0 */
} iou_syscalls;

void iou_set_syscalls(const iou_syscalls *table);

#endif
