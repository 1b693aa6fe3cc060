/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The storage engine as Python sees it. The headers of this room are read twice: by the C compiler, and by cffi's
 * cdef(), for which build_ioutil.py takes out the preprocessor lines: so they hold guards, includes and declarations
 * only.
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
typedef struct iou_handle iou_handle; /* an open image: one for each transfer */

/*
 * What an operation is. Writes, zeros and trims that overlap are done one after the other, in order of submission. A
 * long one lets others have its thread between its steps. At success done is length where there is one (extents: the
 * bytes that the records cover). Errors of our own: ENODATA with IOU_SYS_NONE, read past the end, extents where the
 * image was longer (with a call it is the kernel's: a medium that cannot be read); ENOSPC, write or zero past the end
 * of a device, and nothing was written; ECANCELED; ENOTBLK, see iou_submit_open(). All others are the kernel's.
 */
typedef enum {
    IOU_OPEN = 1, /* path -> handle */
    IOU_CLOSE,    /* ends the handle; the last reference closes the descriptors */
    IOU_STAT,     /* refreshes what iou_handle_info() tells of the size and of zeros */
    IOU_READ,     /* fills all of the buffer, or fails */
    IOU_WRITE,    /* writes all of the buffer, or fails; a file grows as needed */
    IOU_ZERO,     /* the range reads as zeros at success; a file grows as needed */
    IOU_TRIM,     /* frees whole blocks inside the range where that is possible */
    IOU_FLUSH,    /* all that completed before is on stable storage at success; after a failure it fails for ever */
    IOU_EXTENTS   /* fills the buffer with iou_extent records */
} iou_kind;

typedef enum {
    IOU_FUA = 1,       /* write, zero, trim: on stable storage at success */
    IOU_ALLOCATE = 2,  /* zero: the range stays provisioned */
    IOU_FAST_ONLY = 4, /* zero: only without data I/O, else ENOTSUP and not a byte changed, nor the size */
    IOU_WRITABLE = 8,  /* open: for reading and writing; without it, reading only */
    IOU_BUFFERED = 16  /* open: do not try direct I/O */
} iou_flag;

/* How a range was zeroed, in the order of expense. A request that needed several tells the most expensive one. */
typedef enum {
    IOU_METHOD_NONE = 0,
    IOU_METHOD_PUNCH_HOLE,
    IOU_METHOD_ZERO_RANGE,
    IOU_METHOD_ALLOCATE,
    IOU_METHOD_PUNCH_AND_ALLOCATE,
    IOU_METHOD_BLKZEROOUT,
    IOU_METHOD_WRITE,
    IOU_METHOD_REMOTE /* whoever has the image did it, in his way */
} iou_method;

/* Their number, and that of the system calls that zero: those from IOU_SYS_PUNCH_HOLE on. */
enum { IOU_METHODS = 8, IOU_ZEROING_CALLS = 4 };

/* Which system call failed; iou_syscall_name() gives the text for the log. */
typedef enum {
    IOU_SYS_NONE = 0, /* refused by our own checks, before any system call */
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
    IOU_SYS_EXTERNAL /* none of ours: whoever has the image failed */
} iou_syscall;

typedef enum { IOU_FILE = 1, IOU_BLOCK = 2, IOU_EXTERNAL = 3 } iou_type;

/* Workers of an engine. */
enum { IOU_MAX_THREADS = 1024 };

/* Who ran longer belongs into the log, so that slow storage is seen before it hangs. */
enum { IOU_SLOW_SECONDS = 10 };

/*
 * Progress and cancellation of one request, shared by all operations that it is made of. C adds to done, Python
 * reads it; Python sets canceled to 1, C looks at it between steps and ends the operation with ECANCELED.
 * The caller keeps it alive until the completions of all its operations were reaped.
 */
typedef struct {
    uint64_t done;
    uint32_t canceled;
    uint32_t reserved;
} iou_control;

typedef struct {
    uint64_t cookie;    /* as submitted */
    iou_handle *handle; /* open: the new handle at success, else NULL */
    uint64_t done;      /* bytes finished by this operation, also when it failed */
    uint64_t elapsed;   /* ns from the start on a worker to the end */
    uint64_t queued;    /* ns from submission to the start on a worker */
    int32_t error;      /* 0 or a positive errno */
    int32_t syscall;    /* iou_syscall that failed */
    int32_t method;     /* zero: iou_method */
    uint32_t count;     /* extents: records filled */
    uint64_t size;      /* ENODATA of our own: where the image ends */
    /* zero, trim: errnos of the methods that are given up, each told by one operation of an image only, the first;
       0: nothing new. The calls are those from IOU_SYS_PUNCH_HOLE on, in that order. */
    uint16_t given_up[IOU_ZEROING_CALLS];
} iou_completion;

typedef struct {
    uint64_t start;
    uint64_t length;
    uint64_t hole; /* 1: reads as zeros, no data allocated; 0: data */
} iou_extent;

/* What is known of an open image. Capabilities only go from 1 to 0. */
typedef struct {
    uint64_t size;   /* highest size seen; refreshed by open, IOU_STAT and by what grows the file */
    uint64_t device; /* st_dev of a file, st_rdev of a block device: what the thread quota is counted by */
    uint64_t inode;  /* of a file, else 0: with type and device, which image it is */
    uint64_t step;   /* bytes that the next zeroing call will ask for */
    uint32_t type;   /* iou_type */
    uint32_t writable;
    uint32_t direct;     /* direct I/O is in use */
    uint32_t block_size; /* what an unaligned edge is rounded to: power of two, at least 512 */
    uint32_t mem_align;  /* best alignment of buffer addresses */
    uint32_t can_punch_hole;
    uint32_t can_zero_range;
    uint32_t can_fallocate;
    uint32_t can_blkzeroout;
    uint32_t can_seek_hole;
    uint32_t reads_zero;   /* the whole image was one hole at each open and IOU_STAT, and nothing was written here */
    uint32_t flush_failed; /* a flush failed since this handle was opened: every later one fails */
} iou_info;

/* An operation that a worker is busy with. */
typedef struct {
    uint64_t cookie;
    uint64_t offset;
    uint64_t length;
    uint64_t elapsed; /* ns since it started */
    uint32_t kind;
    uint32_t reserved;
    char path[256]; /* cut to fit, ends with NUL */
} iou_running;

typedef struct {
    uint64_t submitted;
    uint64_t completed;
    uint32_t threads; /* alive now */
    uint32_t busy;    /* running an operation */
    uint32_t queued;  /* waiting for a thread, its device's quota, its next turn, or earlier changes that it overlaps */
    uint32_t devices; /* with something queued or running */
} iou_stats;

/*
 * Start an engine. max_threads: 1 to IOU_MAX_THREADS workers, started on demand; idle_ms: a worker that had nothing to
 * do for so long ends. One device gets at most a quarter of the workers (at least one). Stores the engine in *result.
 * -EINVAL, -ENOMEM.
 */
int iou_engine_new(uint32_t max_threads, uint32_t idle_ms, iou_engine **result);

/*
 * Refuse new operations, end queued ones with ECANCELED (closes run), let started ones end, for at most timeout_ms.
 * Blocks. Returns the number of operations that still run (then threads and memory are left alone, for ever or until
 * the next call), 0 if all ended. Handles that are open now are closed with iou_execute(). -ECHILD in a forked child.
 */
int iou_engine_stop(iou_engine *engine, uint32_t timeout_ms);

/* Free a stopped engine whose iou_engine_stop() returned 0 and whose queues are freed. -EBUSY otherwise, -ECHILD. */
int iou_engine_free(iou_engine *engine);

/* Tell the operations that run now, longest first; fills at most max records, returns how many, or -ECHILD. */
int iou_engine_running(iou_engine *engine, iou_running *records, uint32_t max);

void iou_engine_stats(iou_engine *engine, iou_stats *stats);

/* End queued operations whose control is canceled, without waiting for a thread. Returns how many, or -ECHILD. */
int iou_cancel_queued(iou_engine *engine);

/* Make a completion queue. -EMFILE, -ENOMEM, -ECHILD. */
int iou_queue_new(iou_engine *engine, iou_queue **result);

/* Free a queue. -EBUSY while operations submitted through it have not been reaped, -ECHILD. */
int iou_queue_free(iou_queue *queue);

/* The queue's eventfd, non-blocking, close-on-exec; readable when there are completions. Owned by the queue. */
int iou_queue_fd(iou_queue *queue);

/*
 * Move up to max completions into the array and return how many, or -ECHILD. Clears the eventfd when nothing is left,
 * so that a reader that gets fewer than max may wait for it. Called by the queue's own thread only.
 */
int iou_reap(iou_queue *queue, iou_completion *completions, uint32_t max);

/*
 * Queue an open of path (absolute, at most 4095 bytes, copied). flags: IOU_WRITABLE, IOU_BUFFERED. Anything but a
 * regular file or a block device completes with ENOTBLK. It is counted for the device of the mount that the path lies
 * on, so that a hung mount does not stop opens elsewhere. control may be NULL, see iou_submit(); an open that has begun
 * is not canceled. -EINVAL, -ENAMETOOLONG, -ENOMEM, -ESHUTDOWN after stop, -ECHILD in a forked child.
 */
int iou_submit_open(iou_queue *queue, uint64_t cookie, const char *path, uint32_t flags, iou_control *control);

/*
 * Queue an operation. The caller keeps buffer (length bytes; IOU_EXTENTS: buffer_size bytes) and control alive and
 * untouched until the completion was reaped; the engine keeps the handle. buffer of any alignment works, one that is
 * aligned like the offset (to info.mem_align) is not copied. IOU_EXTENTS looks at offset..offset+length and fills as
 * many records as fit, in order, without gaps, from offset; neighbours differ.
 * buffer_size of a read or write may be 0. IOU_CLOSE cannot be canceled; operations submitted before it still run.
 * -EINVAL: unknown kind or flags, range past 2^63 - 1, missing or short buffer, write on a read-only handle, a handle
 * of external.h. -EBADF: after IOU_CLOSE, as far as the handle is still there. -ENOMEM, -ESHUTDOWN, -ECHILD as
 * above.
 */
int iou_submit(iou_queue *queue, uint64_t cookie, iou_handle *handle, uint32_t kind, uint32_t flags, uint64_t offset,
               uint64_t length, void *buffer, uint64_t buffer_size, iou_control *control);

/* Tell what is known of the image now; no system call. The handle must not have been closed. */
void iou_handle_info(iou_handle *handle, iou_info *info);

/*
 * The image's generation: changes when a write, zero or trim starts or ends, by whichever handle; 0 while one is in
 * flight. What was learnt of the content (extents) is valid as long as the same non-zero value is returned. None comes
 * again in this process, also when the image was closed and opened again.
 */
uint64_t iou_handle_generation(iou_handle *handle);

/*
 * Run an operation in the calling thread, for tests and tools: same code, no engine. IOU_OPEN: buffer is the path.
 * Blocks on storage, and on earlier changes that it overlaps. Returns 0 or a negative errno; the details in
 * *completion.
 */
int iou_execute(iou_handle *handle, uint32_t kind, uint32_t flags, uint64_t offset, uint64_t length, void *buffer,
                uint64_t buffer_size, iou_control *control, iou_completion *completion);

/* Whether all length bytes are zero; any alignment; memory speed. */
int iou_is_zero(const void *buffer, uint64_t length);

/* Static text, never NULL. */
const char *iou_syscall_name(int32_t syscall);
const char *iou_method_name(int32_t method);
const char *iou_kind_name(uint32_t kind);

/*
 * The system calls that touch an image, replaceable by tests (fault injection). Each behaves as the call of that name:
 * -1 and errno. NULL members mean the real one; iou_set_syscalls(NULL) restores all. Not to be changed while
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
} iou_syscalls;

void iou_set_syscalls(const iou_syscalls *table);

#endif
