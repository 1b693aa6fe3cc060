/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Loaded before a program by LD_PRELOAD: tells each call that changes an image or a state directory, and kills the
 * program at one of them; see killedcalls.py, which says what the lines of the trace are.
 *
 * IMAGEIO_TEST_CALLS holds words: TRACE STATE IMAGE KIND WHEN NUMBER. IMAGE: paths with a colon between
 * them. KIND: letters of the kinds of calls that are counted. WHEN: b(efore), m(iddle) or a(fter) the call. NUMBER:
 * which of them; 0: none.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <linux/fs.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Kinds of calls. */
enum { NO_KIND = 0, IMAGE_CHANGE = 'w', IMAGE_FLUSH = 'f', STATE_CHANGE = 'j', STATE_SYNC = 's', ANSWER = 'n' };

/* What is equal at the ends of a write is not told as changed: direct I/O writes whole blocks. */
enum { BLOCK = 4096 };

typedef struct call {
    char kind;
    const char *name;
    char *path;   /* until enter() has told of the call */
    char *second; /* the new name of what is renamed */
    int64_t offset, length;
    int64_t changed, changed_length; /* of these, what will differ */
    const struct iovec *parts;       /* what a state file will hold */
    int count;
    unsigned long long number; /* of this call, in the trace */
} call;

static int trace = -1;
static char state[PATH_MAX], images[PATH_MAX * 4], kinds[16], when;
static long victim;
static atomic_long counted;
static atomic_ullong told;

__attribute__((constructor)) static void begin(void) {
    const char *words = getenv("IMAGEIO_TEST_CALLS");
    char path[PATH_MAX];
    if (!words || sscanf(words, "%4095s %4095s %16383s %15s %c %ld", path, state, images, kinds, &when, &victim) != 6)
        return;
    trace = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    /* Only this process: not the servers that it starts. */
    unsetenv("LD_PRELOAD");
    unsetenv("IMAGEIO_TEST_CALLS");
}

/* Files */

static int is_below_state(const char *path) {
    size_t length = strlen(state);
    return strncmp(path, state, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int is_image(const char *path) {
    size_t length = strlen(path);
    for (const char *at = images; *at; at += strcspn(at, ":"), at += *at == ':')
        if (strcspn(at, ":") == length && strncmp(at, path, length) == 0)
            return 1;
    return 0;
}

static int path_of(int fd, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0;
}

static void join(int directory, const char *name, char path[PATH_MAX]) {
    char parent[PATH_MAX] = "";
    if (name[0] != '/')
        path_of(directory == AT_FDCWD ? (int)syscall(SYS_openat, AT_FDCWD, ".", O_PATH | O_CLOEXEC) : directory,
                parent);
    if (snprintf(path, PATH_MAX, "%s%s%s", parent, *parent ? "/" : "", name) >= PATH_MAX)
        path[0] = 0;
}

/*
 * Paths are not on the stack: Python's signal handler writes to a socket, on the stack that faulthandler has made for
 * signals, of 8 KiB and a frame.
 */
static void make_paths(call *c) {
    c->path = calloc(2, PATH_MAX);
    if (!c->path)
        abort();
    c->second = c->path + PATH_MAX;
}

static int is_stored(mode_t mode) {
    return S_ISREG(mode) || S_ISBLK(mode) || S_ISDIR(mode);
}

/* Set what is called; NO_KIND: nobody wants to know. */
static void classify(call *c, int fd, char image_kind, char state_kind) {
    struct stat info;
    c->kind = NO_KIND;
    if (trace == -1 || fstat(fd, &info) == -1)
        return;
    if (S_ISSOCK(info.st_mode)) {
        c->kind = image_kind == IMAGE_CHANGE ? ANSWER : NO_KIND;
    } else if (is_stored(info.st_mode)) {
        make_paths(c);
        path_of(fd, c->path);
        if (is_below_state(c->path))
            c->kind = state_kind;
        else if (is_image(c->path))
            c->kind = image_kind;
    }
}

/* Trace */

static void tell(const char *line, size_t length) {
    int saved = errno;
    if (syscall(SYS_write, trace, line, length) != (ssize_t)length)
        abort();
    errno = saved;
}

static size_t put_hexadecimal(char *to, const struct iovec *parts, int count) {
    static const char digits[] = "0123456789abcdef";
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        const unsigned char *data = parts[i].iov_base;
        for (size_t j = 0; j < parts[i].iov_len; j++) {
            to[length++] = digits[data[j] >> 4];
            to[length++] = digits[data[j] & 15];
        }
    }
    return length;
}

static size_t total(const struct iovec *parts, int count) {
    size_t length = 0;
    for (int i = 0; i < count; i++)
        length += parts[i].iov_len;
    return length;
}

static void tell_begin(call *c) {
    size_t room = 3 * PATH_MAX + 2 * total(c->parts, c->count);
    char *line = malloc(room);
    if (!line)
        abort();
    c->number = atomic_fetch_add(&told, 1);
    int length = snprintf(line, room, "+ %llu %s %s %s %lld %lld %lld %lld ", c->number, c->name, c->path,
                          *c->second ? c->second : "-", (long long)c->offset, (long long)c->length,
                          (long long)c->changed, (long long)c->changed_length);
    size_t end = (size_t)length + put_hexadecimal(line + length, c->parts, c->count);
    line[end++] = '.';
    line[end++] = '\n';
    tell(line, end);
    free(line);
}

static void tell_end(const call *c, long long result) {
    char line[128];
    tell(line, (size_t)snprintf(line, sizeof(line), "- %llu %lld\n", c->number, result));
}

static _Noreturn void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Count a call and tell of it; return if it shall be the last one. */
static int enter(call *c) {
    int known = c->kind != NO_KIND;
    int last = known && strchr(kinds, c->kind) && victim && atomic_fetch_add(&counted, 1) + 1 == victim;
    if (known && c->kind != ANSWER)
        tell_begin(c);
    free(c->path);
    if (last && when == 'b')
        die();
    return last;
}

static void leave(const call *c, int last, long long result) {
    if (c->kind == NO_KIND)
        return;
    if (c->kind != ANSWER)
        tell_end(c, result);
    if (last)
        die();
}

#define REAL(name, type, parameters) ((type(*) parameters)dlsym(RTLD_NEXT, #name))

/* Writes */

static size_t equal_at_start(const char *a, const char *b, size_t length) {
    size_t same = 0;
    while (same < length && same < BLOCK && a[same] == b[same])
        same++;
    return same;
}

static size_t equal_at_end(const char *a, const char *b, size_t length) {
    size_t same = 0;
    while (same < length && same < BLOCK && a[length - same - 1] == b[length - same - 1])
        same++;
    return same;
}

/* Set what a write to an image will change. */
static void compare(call *c, int fd, const char *data, size_t length) {
    void *now;
    c->changed = c->offset;
    c->changed_length = c->length;
    if (posix_memalign(&now, BLOCK, length + BLOCK) != 0)
        abort();
    if (pread(fd, now, length, c->offset) == (ssize_t)length) {
        size_t start = equal_at_start(now, data, length);
        size_t end = equal_at_end((char *)now + start, data + start, length - start);
        c->changed += (int64_t)start;
        c->changed_length -= (int64_t)(start + end);
    }
    free(now);
}

static ssize_t write_parts(const char *name, int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    call c = {.name = name, .parts = parts, .count = count, .length = (int64_t)total(parts, count)};
    classify(&c, fd, IMAGE_CHANGE, STATE_CHANGE);
    c.offset = offset >= 0 ? offset : 0;
    if (c.kind == STATE_CHANGE && offset < 0) {
        struct stat info;
        c.offset = (fcntl(fd, F_GETFL) & O_APPEND) && fstat(fd, &info) == 0 ? info.st_size : lseek(fd, 0, SEEK_CUR);
    }
    if (c.kind == IMAGE_CHANGE) {
        if (count == 1)
            compare(&c, fd, parts[0].iov_base, parts[0].iov_len);
        else
            c.changed = c.offset, c.changed_length = c.length;
        c.parts = NULL;
        c.count = 0;
    }
    int last = enter(&c);
    struct iovec half = parts[0];
    if (last && when == 'm' && count > 0) {
        half.iov_len = c.kind == IMAGE_CHANGE ? half.iov_len / 2 / BLOCK * BLOCK : half.iov_len / 2;
        parts = &half;
        count = 1;
    }
    ssize_t result = flags >= 0 ? REAL(pwritev2, ssize_t,
                                       (int, const struct iovec *, int, off64_t, int))(fd, parts, count, offset, flags)
                                : REAL(writev, ssize_t, (int, const struct iovec *, int))(fd, parts, count);
    leave(&c, last, result);
    return result;
}

/* Asynchronous writes (aio.c), each of which is a call from its io_submit(2) to the io_getevents(2) that tells its end.
 */

static struct under_way {
    const struct iocb *iocb;
    unsigned long long number;
} under_way[4096];
static pthread_mutex_t under_way_lock = PTHREAD_MUTEX_INITIALIZER;

/* Return the entry of an iocb; of NULL, a free one. NULL: there is none. */
static struct under_way *find(const struct iocb *iocb) {
    for (unsigned i = 0; i < sizeof(under_way) / sizeof(under_way[0]); i++)
        if (under_way[i].iocb == iocb)
            return &under_way[i];
    return NULL;
}

static void keep(const struct iocb *iocb, unsigned long long number) {
    pthread_mutex_lock(&under_way_lock);
    struct under_way *place = find(NULL);
    if (!place)
        abort();
    *place = (struct under_way){iocb, number};
    pthread_mutex_unlock(&under_way_lock);
}

/* Tell of the end of a write, if one is known by this event. */
static void tell_event(const struct io_event *event) {
    pthread_mutex_lock(&under_way_lock);
    struct under_way *place = find((const struct iocb *)(uintptr_t)event->obj);
    if (place) {
        call c = {.kind = IMAGE_CHANGE, .number = place->number};
        place->iocb = NULL;
        tell_end(&c, event->res);
    }
    pthread_mutex_unlock(&under_way_lock);
}

/* The last write is done here, half or whole. */
static _Noreturn void write_and_die(const call *c, const struct iocb *iocb) {
    size_t length = when == 'm' ? iocb->aio_nbytes / 2 / BLOCK * BLOCK : iocb->aio_nbytes;
    const void *data = (const void *)(uintptr_t)iocb->aio_buf;
    ssize_t result = REAL(pwrite64, ssize_t, (int, const void *, size_t, off64_t))((int)iocb->aio_fildes, data, length,
                                                                                   iocb->aio_offset);
    tell_end(c, result);
    die();
}

/* Submit the first of some calls. The caller goes on with the others. */
static long submit(long (*real)(long, ...), long context, struct iocb **calls) {
    struct iocb *iocb = calls[0];
    call c = {.name = "write", .offset = iocb->aio_offset, .length = (int64_t)iocb->aio_nbytes};
    if (iocb->aio_lio_opcode == IOCB_CMD_PWRITE)
        classify(&c, (int)iocb->aio_fildes, IMAGE_CHANGE, NO_KIND);
    if (c.kind != NO_KIND)
        compare(&c, (int)iocb->aio_fildes, (const char *)(uintptr_t)iocb->aio_buf, iocb->aio_nbytes);
    if (enter(&c))
        write_and_die(&c, iocb);
    if (c.kind != NO_KIND)
        keep(iocb, c.number);
    long count = real(SYS_io_submit, context, 1L, calls);
    if (count != 1 && c.kind != NO_KIND) {
        struct io_event event = {.obj = (uintptr_t)iocb, .res = -1};
        tell_event(&event);
    }
    return count;
}

long syscall(long number, ...) {
    long a[6], (*real)(long, ...) = REAL(syscall, long, (long, ...));
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_io_submit && trace != -1 && a[1] > 0)
        return submit(real, a[0], (struct iocb **)a[2]);
    long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    for (long i = 0; number == SYS_io_getevents && trace != -1 && i < result; i++)
        tell_event((const struct io_event *)a[3] + i);
    return result;
}

#define PWRITE(name, type)                                                                                             \
    ssize_t name(int fd, const void *data, size_t length, type offset) {                                               \
        struct iovec part = {(void *)data, length};                                                                    \
        return write_parts("write", fd, &part, 1, offset, 0);                                                          \
    }
#define PWRITEV(name, type)                                                                                            \
    ssize_t name(int fd, const struct iovec *parts, int count, type offset) {                                          \
        return write_parts("write", fd, parts, count, offset, 0);                                                      \
    }

PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

ssize_t write(int fd, const void *data, size_t length) {
    struct iovec part = {(void *)data, length};
    return write_parts("write", fd, &part, 1, -1, -1);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return write_parts("write", fd, parts, count, -1, -1);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    call c = {.name = "send"};
    classify(&c, fd, IMAGE_CHANGE, STATE_CHANGE);
    int last = enter(&c);
    struct msghdr part = *message;
    struct iovec half;
    if (last && when == 'm' && part.msg_iovlen > 0) {
        half = part.msg_iov[0];
        half.iov_len /= 2;
        part.msg_iov = &half;
        part.msg_iovlen = 1;
    }
    ssize_t result = REAL(sendmsg, ssize_t, (int, const struct msghdr *, int))(fd, &part, flags);
    leave(&c, last, result);
    return result;
}

ssize_t send(int fd, const void *data, size_t length, int flags) {
    struct iovec part = {(void *)data, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return sendmsg(fd, &message, flags);
}

/* Zeroing */

static int zero(int fd, int mode, off64_t offset, off64_t length) {
    call c = {.name = "zero", .offset = offset, .length = length, .changed = offset, .changed_length = length};
    classify(&c, fd, IMAGE_CHANGE, STATE_CHANGE);
    int last = enter(&c);
    if (last && when == 'm')
        length = length / 2 / BLOCK * BLOCK;
    int result = length ? REAL(fallocate64, int, (int, int, off64_t, off64_t))(fd, mode, offset, length) : 0;
    leave(&c, last, result);
    return result;
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
    return zero(fd, mode, offset, length);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
    return zero(fd, mode, offset, length);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    int (*real)(int, unsigned long, ...) = REAL(ioctl, int, (int, unsigned long, ...));
    if (request != BLKZEROOUT && request != BLKDISCARD)
        return real(fd, request, argument);
    const uint64_t *range = argument;
    call c = {.name = "zero", .offset = (int64_t)range[0], .length = (int64_t)range[1]};
    c.changed = c.offset;
    c.changed_length = c.length;
    classify(&c, fd, IMAGE_CHANGE, STATE_CHANGE);
    int last = enter(&c);
    int result = real(fd, request, argument);
    leave(&c, last, result);
    return result;
}

/* Flushes */

#define SYNC(function)                                                                                                 \
    int function(int fd) {                                                                                             \
        call c = {.name = "sync"};                                                                                     \
        classify(&c, fd, IMAGE_FLUSH, STATE_SYNC);                                                                     \
        int last = enter(&c);                                                                                          \
        int result = REAL(function, int, (int))(fd);                                                                   \
        leave(&c, last, result);                                                                                       \
        return result;                                                                                                 \
    }

SYNC(fsync)
SYNC(fdatasync)

/* State files */

static int truncate_file(int fd, off64_t length) {
    call c = {.name = "truncate", .length = length};
    classify(&c, fd, NO_KIND, STATE_CHANGE);
    int last = enter(&c);
    int result = REAL(ftruncate64, int, (int, off64_t))(fd, length);
    leave(&c, last, result);
    return result;
}

int ftruncate(int fd, off_t length) {
    return truncate_file(fd, length);
}

int ftruncate64(int fd, off64_t length) {
    return truncate_file(fd, length);
}

/* A call by names, the second of which may be NULL. */
static int enter_names(call *c, int from, const char *old, int to, const char *new) {
    if (trace == -1)
        return 0;
    make_paths(c);
    join(from, old, c->path);
    if (new)
        join(to, new, c->second);
    c->kind = is_below_state(c->path) ? STATE_CHANGE : NO_KIND;
    return enter(c);
}

int renameat(int from, const char *old, int to, const char *new) {
    call c = {.name = "rename"};
    int last = enter_names(&c, from, old, to, new);
    int result = (int)syscall(SYS_renameat2, from, old, to, new, 0);
    leave(&c, last, result);
    return result;
}

int rename(const char *old, const char *new) {
    return renameat(AT_FDCWD, old, AT_FDCWD, new);
}

int unlinkat(int directory, const char *name, int flags) {
    call c = {.name = "unlink"};
    int last = enter_names(&c, directory, name, -1, NULL);
    int result = (int)syscall(SYS_unlinkat, directory, name, flags);
    leave(&c, last, result);
    return result;
}

int unlink(const char *name) {
    return unlinkat(AT_FDCWD, name, 0);
}

static int open_file(int directory, const char *name, int flags, mode_t mode) {
    call c = {.name = flags & O_TRUNC ? "empty" : "create"};
    int last = flags & (O_CREAT | O_TRUNC) ? enter_names(&c, directory, name, -1, NULL) : 0;
    int result = (int)syscall(SYS_openat, directory, name, flags, mode);
    leave(&c, last, result);
    return result;
}

#define OPEN(name, parameters, directory)                                                                              \
    int name parameters {                                                                                              \
        mode_t mode = 0;                                                                                               \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                                         \
            va_list rest;                                                                                              \
            va_start(rest, flags);                                                                                     \
            mode = va_arg(rest, mode_t);                                                                               \
            va_end(rest);                                                                                              \
        }                                                                                                              \
        return open_file(directory, path, flags, mode);                                                                \
    }

OPEN(open, (const char *path, int flags, ...), AT_FDCWD)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD)
OPEN(openat, (int directory, const char *path, int flags, ...), directory)
OPEN(openat64, (int directory, const char *path, int flags, ...), directory)
