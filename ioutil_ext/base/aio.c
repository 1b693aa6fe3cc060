/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Linux AIO (io_submit(2)). Completions make the loop's eventfd readable. Making and ending a context takes
 * milliseconds, so contexts that are not used any more are kept for other loops.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/aio.h"
#include "base/thread.h"

/* Calls of a loop under way. fs.aio-max-nr, 65536 for a host, is enough for 1024 loops. */
#define MAX_CALLS LOOP_FIBERS

#define MAX_KEPT 64u

/* A call of a fiber, on its stack. */
struct call {
    struct iocb iocb;
    struct fiber *fiber;
    ssize_t result;
};

struct aio {
    struct batch batch;
    struct aio *next; /* of those kept */
    aio_context_t context;
    int event_fd;
    unsigned waiting, under_way; /* calls that were not submitted, and that have not ended */
    struct iocb *calls[MAX_CALLS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct aio *kept;
static unsigned kept_count;
static uint32_t born; /* fork generation of those kept: a child has no contexts of its parent */

/* ---- contexts --------------------------------------------------------------------------------------------------- */

static struct aio *of(struct batch *batch) {
    return container_of(batch, struct aio, batch);
}

static struct aio *take_kept_aio(void) {
    pthread_mutex_lock(&lock);
    if (born != fork_generation()) {
        kept = NULL; /* its memory is lost in the child */
        kept_count = 0;
        born = fork_generation();
    }
    struct aio *aio = kept;
    if (aio) {
        kept = aio->next;
        kept_count--;
    }
    pthread_mutex_unlock(&lock);
    return aio;
}

static bool keep(struct aio *aio) {
    pthread_mutex_lock(&lock);
    bool keeps = kept_count < MAX_KEPT && born == fork_generation();
    if (keeps) {
        aio->next = kept;
        kept = aio;
        kept_count++;
    }
    pthread_mutex_unlock(&lock);
    return keeps;
}

static int make(struct aio **result) {
    struct aio *aio = calloc(1, sizeof(*aio));
    if (!aio)
        return -ENOMEM;
    if (syscall(SYS_io_setup, MAX_CALLS, &aio->context) == -1) {
        int error = -errno;
        free(aio);
        return error;
    }
    *result = aio;
    return 0;
}

static int take_aio(struct aio **result) {
    *result = take_kept_aio();
    return *result ? 0 : make(result);
}

static void give(struct batch *batch) {
    struct aio *aio = of(batch);
    if (keep(aio))
        return;
    syscall(SYS_io_destroy, aio->context);
    free(aio);
}

int aio_probe(void) {
    struct aio *aio;
    int error = take_aio(&aio);
    if (!error)
        give(&aio->batch);
    return error;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

static void end_call(struct aio *aio, struct call *call, ssize_t result) {
    aio->under_way--;
    call->result = result;
    fiber_wake(call->fiber);
}

/* Some were submitted, or the first one was refused. A full context has room again when a call ends. */
static void take_submitted(struct aio *aio, long count) {
    if (count < 0 && (count == -EINTR || (count == -EAGAIN && aio->under_way > aio->waiting)))
        return;
    if (count <= 0) {
        end_call(aio, container_of(aio->calls[0], struct call, iocb), -ENOTSUP);
        count = 1;
    }
    aio->waiting -= (unsigned)count;
    for (unsigned i = 0; i < aio->waiting; i++)
        aio->calls[i] = aio->calls[i + (unsigned)count];
}

static void begin_batch(struct batch *batch) {
    struct aio *aio = of(batch);
    unsigned before = aio->waiting + 1;
    while (aio->waiting && aio->waiting < before) {
        before = aio->waiting;
        long count = syscall(SYS_io_submit, aio->context, aio->waiting, aio->calls);
        take_submitted(aio, count == -1 ? -errno : count);
    }
}

static void reap(struct batch *batch) {
    struct aio *aio = of(batch);
    struct io_event events[MAX_CALLS];
    struct timespec at_once = {0};
    long count = 0;
    if (aio->under_way > aio->waiting)
        count = syscall(SYS_io_getevents, aio->context, 0, MAX_CALLS, events, &at_once);
    for (long i = 0; i < count; i++)
        end_call(aio, (struct call *)(uintptr_t)events[i].data, (ssize_t)events[i].res);
}

bool aio_is_possible(void) {
    const struct fiber *fiber = fiber_current();
    if (!fiber || fiber->loop->refused)
        return false;
    struct loop *loop = fiber->loop;
    if (loop->batch)
        return true;
    struct aio *aio;
    loop->refused = take_aio(&aio);
    if (loop->refused)
        return false;
    aio->batch = (struct batch){.begin = begin_batch, .reap = reap, .free = give};
    aio->event_fd = loop->event_fd;
    loop->batch = &aio->batch;
    return true;
}

static ssize_t run_call(int fd, uint16_t operation, uint64_t memory, size_t length, uint64_t offset) {
    struct fiber *fiber = fiber_current();
    struct aio *aio = of(fiber->loop->batch);
    struct call call = {
        .iocb =
            {
                .aio_data = (uint64_t)(uintptr_t)&call,
                .aio_lio_opcode = operation,
                .aio_fildes = (uint32_t)fd,
                .aio_buf = memory,
                .aio_nbytes = length,
                .aio_offset = (int64_t)offset,
                .aio_flags = IOCB_FLAG_RESFD,
                .aio_resfd = (uint32_t)aio->event_fd,
            },
        .fiber = fiber,
    };
    if (aio->under_way == MAX_CALLS)
        return -ENOTSUP;
    aio->under_way++;
    aio->calls[aio->waiting++] = &call.iocb;
    fiber_sleep(FOR_EVER);
    return call.result;
}

ssize_t aio_pread(int fd, void *memory, size_t length, uint64_t offset) {
    return run_call(fd, IOCB_CMD_PREAD, (uint64_t)(uintptr_t)memory, length, offset);
}

ssize_t aio_pwrite(int fd, const void *memory, size_t length, uint64_t offset) {
    return run_call(fd, IOCB_CMD_PWRITE, (uint64_t)(uintptr_t)memory, length, offset);
}
