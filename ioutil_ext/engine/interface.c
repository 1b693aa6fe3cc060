/* SPDX-License-Identifier: Apache-2.0 */

/* The engine's interface: submission, cancellation, running operations, stop. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/aio.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "engine/engine.h"
#include "engine/running.h"
#include "qcow2/open.h"

#define MAX_PATH_LENGTH 4095u

int iou_engine_new(uint32_t max_threads, uint32_t idle_ms, iou_engine **result) {
    if (max_threads == 0 || max_threads > IOU_MAX_THREADS || !result)
        return -EINVAL;
    fork_watch();
    iou_engine *engine = calloc(1, sizeof(*engine));
    if (!engine)
        return -ENOMEM;
    engine->max_threads = max_threads;
    engine->quota = (uint32_t)max_u64(1, max_threads / 4);
    engine->idle_ms = idle_ms;
    engine->born = fork_generation();
    pthread_mutex_init(&engine->lock, NULL);
    monotonic_cond_init(&engine->worker_ended);
    link_init(&engine->devices);
    link_init(&engine->ready);
    link_init(&engine->parked);
    link_init(&engine->workers);
    link_init(&engine->dead);
    link_init(&engine->own_thread);
    link_init(&engine->idle);
    link_init(&engine->woken);
    *result = engine;
    return 0;
}

int iou_async_io(void) {
    return aio_probe();
}

/* ---- canceling and stopping ------------------------------------------------------------------------------------- */

static void finish_canceled(struct op *op) {
    uint64_t now = now_ns(), started = op->started_at ? op->started_at : now;
    op_end(op, ECANCELED);
    op->result.queued = started - op->submitted_at;
    op->result.elapsed = now - started;
    op_unclaim(op);
    worker_finish(op);
}

static int cancel_each(iou_engine *engine, bool all) {
    struct link canceled = LINK_EMPTY(canceled);
    struct claim *freed = NULL;
    pthread_mutex_lock(&engine->lock);
    uint32_t count = schedule_cancel(engine, all, &canceled, &freed);
    pthread_mutex_unlock(&engine->lock);
    claims_admit(freed);
    while (!link_empty(&canceled)) {
        struct op *op = container_of(link_take(&canceled), struct op, link);
        finish_canceled(op);
    }
    return (int)count;
}

int iou_cancel_queued(iou_engine *engine) {
    return engine_is_foreign(engine) ? -ECHILD : cancel_each(engine, false);
}

static uint32_t count_unfinished(const iou_engine *engine) {
    return engine->busy + engine->queued + engine->parked_count;
}

/* Wait until all threads have ended, or the time has passed and an operation has not ended. The lock is held. */
static void await_workers(iou_engine *engine, uint32_t timeout_ms) {
    struct timespec deadline;
    deadline_in(CLOCK_MONOTONIC, &deadline, timeout_ms);
    bool in_time = true;
    while ((engine->threads || engine->busy) && (in_time || !count_unfinished(engine))) {
        if (in_time)
            in_time = pthread_cond_timedwait(&engine->worker_ended, &engine->lock, &deadline) != ETIMEDOUT;
        else /* no operation is left, so the threads end soon */
            pthread_cond_wait(&engine->worker_ended, &engine->lock);
    }
}

int iou_engine_stop(iou_engine *engine, uint32_t timeout_ms) {
    if (engine_is_foreign(engine))
        return -ECHILD;
    pthread_mutex_lock(&engine->lock);
    engine->stopping = true;
    pthread_mutex_unlock(&engine->lock);
    cancel_each(engine, true);
    pthread_mutex_lock(&engine->lock);
    workers_wake_all(engine);
    engine_unlock(engine);
    pthread_mutex_lock(&engine->lock);
    await_workers(engine, timeout_ms);
    workers_join_dead(engine);
    uint32_t unfinished = count_unfinished(engine);
    pthread_mutex_unlock(&engine->lock);
    return (int)unfinished;
}

int iou_engine_free(iou_engine *engine) {
    if (engine_is_foreign(engine))
        return -ECHILD;
    pthread_mutex_lock(&engine->lock);
    bool busy = !engine->stopping || engine->threads || count_unfinished(engine) || engine->queues;
    pthread_mutex_unlock(&engine->lock);
    if (busy)
        return -EBUSY;
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->worker_ended);
    free(engine);
    return 0;
}

/* ---- submission ------------------------------------------------------------------------------------------------- */

/* Queue a copy of request; the completion counts as outstanding from here on. */
static int submit(struct iou_queue *queue, const struct op *request, uint64_t device) {
    struct op *op = malloc(sizeof(*op));
    if (!op)
        return -ENOMEM;
    *op = *request;
    op->queue = queue;
    queue->outstanding++;
    int error = workers_submit(queue->engine, op, device);
    if (error) {
        queue->outstanding--;
        free(op);
    }
    return error;
}

static uint64_t chain_devices(const iou_qcow2_chain *chain) {
    struct mounted files[IOU_QCOW2_MAX_LAYERS] = {0};
    uint64_t devices[IOU_QCOW2_MAX_LAYERS];
    for (uint32_t i = 0; i < chain->count; i++)
        files[i].path = chain->layers[i].path;
    mount_find(files, chain->count);
    for (uint32_t i = 0; i < chain->count; i++)
        devices[i] = files[i].device;
    return image_devices(devices, chain->count);
}

static uint64_t path_device(const char *path) {
    struct mounted file = {.path = path};
    mount_find(&file, 1);
    return file.device;
}

static int submit_open(iou_queue *queue, struct op *request, const char *path) {
    if (engine_is_foreign(queue->engine))
        return -ECHILD;
    if (op_check(request) || !path || path[0] != '/')
        return -EINVAL;
    if (strlen(path) > MAX_PATH_LENGTH)
        return -ENAMETOOLONG;
    request->path = strdup(path);
    if (!request->path)
        return -ENOMEM;
    int error = submit(queue, request, request->chain ? chain_devices(request->chain) : path_device(path));
    if (error)
        free(request->path);
    return error;
}

int iou_submit_open(iou_queue *queue, uint64_t cookie, const char *path, uint32_t flags, iou_control *control) {
    struct op request = {.kind = IOU_OPEN, .flags = flags, .control = control, .result.cookie = cookie};
    return submit_open(queue, &request, path);
}

int iou_submit_open_qcow2(iou_queue *queue, uint64_t cookie, const iou_qcow2_chain *chain, uint32_t flags,
                          iou_control *control) {
    struct op request = {.kind = IOU_OPEN, .flags = flags, .control = control, .result.cookie = cookie, .chain = chain};
    return qcow2_is_chain(chain) ? submit_open(queue, &request, chain->layers[0].path) : -EINVAL;
}

int iou_submit(iou_queue *queue, uint64_t cookie, iou_handle *handle, uint32_t kind, uint32_t flags, uint64_t offset,
               uint64_t length, void *buffer, uint64_t buffer_size, iou_control *control) {
    struct op request = {
        .handle = handle,
        .kind = kind,
        .flags = flags,
        .offset = offset,
        .length = length,
        .buffer = buffer,
        .buffer_size = buffer_size,
        .control = kind == IOU_CLOSE ? NULL : control,
        .result.cookie = cookie,
    };
    if (engine_is_foreign(queue->engine))
        return -ECHILD;
    int error = kind == IOU_OPEN ? -EINVAL : op_check(&request);
    if (!error)
        error = engine_take_handle(queue->engine, handle, kind);
    if (error)
        return error;
    error = submit(queue, &request, handle->image->waits_for);
    if (error)
        engine_untake_handle(queue->engine, handle, kind);
    return error;
}

/* ---- running operations ----------------------------------------------------------------------------------------- */

void iou_engine_stats(iou_engine *engine, iou_stats *stats) {
    *stats = (iou_stats){0};
    if (engine_is_foreign(engine))
        return;
    pthread_mutex_lock(&engine->lock);
    *stats = (iou_stats){
        .threads = engine->threads,
        .busy = engine->busy,
        .queued = engine->queued + engine->parked_count,
    };
    pthread_mutex_unlock(&engine->lock);
}

/* Insert into records, which are sorted, longest first; returns the new count. */
static uint32_t insert_record(iou_running *records, uint32_t count, uint32_t max, const iou_running *record) {
    uint32_t place = count;
    while (place > 0 && records[place - 1].elapsed < record->elapsed)
        place--;
    if (place == max)
        return count;
    count = count < max ? count + 1 : max;
    memmove(&records[place + 1], &records[place], (count - place - 1) * sizeof(*records));
    records[place] = *record;
    return count;
}

static uint32_t insert_op(iou_running *records, uint32_t count, uint32_t max, const struct op *op, uint64_t now) {
    iou_running record;
    if (!op)
        return count;
    op_describe(op, now, &record);
    return insert_record(records, count, max, &record);
}

int iou_engine_running(iou_engine *engine, iou_running *records, uint32_t max) {
    uint32_t count = 0;
    if (engine_is_foreign(engine))
        return -ECHILD;
    pthread_mutex_lock(&engine->lock);
    uint64_t now = now_ns();
    for (struct link *node = engine->workers.next; node != &engine->workers; node = node->next)
        count = insert_op(records, count, max, container_of(node, const struct worker, link)->op, now);
    for (struct link *node = engine->own_thread.next; node != &engine->own_thread; node = node->next)
        count = insert_op(records, count, max, container_of(node, const struct op, link), now);
    pthread_mutex_unlock(&engine->lock);
    return (int)count;
}

/* Put the operation into *record if it is the owner's and has run longest so far. */
static void look_at_op(const struct op *op, const void *owner, uint64_t now, iou_running *record) {
    iou_running each;
    if (!op || op->owner != owner)
        return;
    op_describe(op, now, &each);
    if (each.elapsed >= record->elapsed)
        *record = each;
}

bool engine_slowest(struct iou_engine *engine, const void *owner, iou_running *record) {
    *record = (iou_running){0};
    pthread_mutex_lock(&engine->lock);
    uint64_t now = now_ns();
    for (struct link *node = engine->workers.next; node != &engine->workers; node = node->next)
        look_at_op(container_of(node, const struct worker, link)->op, owner, now, record);
    for (struct link *node = engine->own_thread.next; node != &engine->own_thread; node = node->next)
        look_at_op(container_of(node, const struct op, link), owner, now, record);
    pthread_mutex_unlock(&engine->lock);
    return record->kind;
}
