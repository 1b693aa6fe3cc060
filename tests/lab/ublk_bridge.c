/* SPDX-License-Identifier: Apache-2.0 */

/* An NBD export as a block device of this host, by the kernel's ublk driver:
 *
 *     ublk_bridge URI
 *
 * prints the name of the device when it is there, serves it until SIGTERM or SIGINT, and removes it. Each of its queues
 * is a thread with an NBD connection of its own. When the server is gone the device gives I/O errors until it is
 * removed. */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <libnbd.h>
#include <liburing.h>
#include <linux/ublk_cmd.h>

#define QUEUES 2
#define DEPTH 32u
#define MAX_TRANSFER (512u * 1024)
#define SECTOR_SHIFT 9
#define BLOCK_SHIFT 12
/* Of trims and zeroing; its bytes are told in 32 bits. */
#define MAX_SECTORS (UINT_MAX >> SECTOR_SHIFT)

/* A request is known by its tag, which is used again when it was answered: there is at most one command of each tag in
 * a ring. */
struct slot {
    struct queue *queue;
    unsigned tag;
    int done; /* the result if there is no error */
    char data[MAX_TRANSFER];
};

struct queue {
    unsigned index;
    int device;
    struct nbd_handle *nbd;
    struct io_uring ring;
    const struct ublksrv_io_desc *requests; /* by tag, written by the kernel */
    struct slot slots[DEPTH];
    unsigned fetching; /* tags that have not come back for the last time */
    pthread_t thread;
};

static _Noreturn void fail(const char *what, const char *why) {
    fprintf(stderr, "ublk_bridge: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static void check(const char *what, int result) {
    if (result < 0)
        fail(what, strerror(-result));
}

/* Tell the kernel the result of a request, if command says so, and ask for the next one. */
static void fetch(struct slot *slot, unsigned command, int result) {
    struct queue *queue = slot->queue;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);
    const struct ublksrv_io_cmd io = {
        .q_id = (__u16)queue->index, .tag = (__u16)slot->tag, .result = result, .addr = (uintptr_t)slot->data};

    io_uring_prep_rw(IORING_OP_URING_CMD, sqe, queue->device, NULL, 0, 0);
    sqe->cmd_op = command;
    memcpy(sqe->cmd, &io, sizeof(io));
    io_uring_sqe_set_data(sqe, slot);
}

static int answered(void *data, int *error) {
    struct slot *slot = data;

    fetch(slot, UBLK_U_IO_COMMIT_AND_FETCH_REQ, *error ? -*error : slot->done);
    return 1; /* libnbd need not keep it */
}

/* Send a request of the kernel to the server; -1 if that is not possible. */
static int64_t send_request(struct slot *slot, const struct ublksrv_io_desc *request) {
    struct nbd_handle *nbd = slot->queue->nbd;
    const nbd_completion_callback callback = {.callback = answered, .user_data = slot};
    const uint64_t offset = request->start_sector << SECTOR_SHIFT,
                   length = (uint64_t)request->nr_sectors << SECTOR_SHIFT;
    const uint32_t fua = request->op_flags & UBLK_IO_F_FUA ? LIBNBD_CMD_FLAG_FUA : 0;
    const uint32_t no_hole = request->op_flags & UBLK_IO_F_NOUNMAP ? LIBNBD_CMD_FLAG_NO_HOLE : 0;

    slot->done = 0;
    switch (ublksrv_get_op(request)) {
    case UBLK_IO_OP_READ:
        slot->done = (int)length;
        return nbd_aio_pread(nbd, slot->data, length, offset, callback, 0);
    case UBLK_IO_OP_WRITE:
        slot->done = (int)length;
        return nbd_aio_pwrite(nbd, slot->data, length, offset, callback, fua);
    case UBLK_IO_OP_FLUSH:
        return nbd_aio_flush(nbd, callback, 0);
    case UBLK_IO_OP_DISCARD:
        return nbd_aio_trim(nbd, length, offset, callback, fua);
    case UBLK_IO_OP_WRITE_ZEROES:
        return nbd_aio_zero(nbd, length, offset, callback, fua | no_hole);
    default:
        return -1;
    }
}

/* What came from the kernel: requests, or that a tag is not used any more. */
static void receive(struct queue *queue) {
    struct io_uring_cqe *cqe;

    while (io_uring_peek_cqe(&queue->ring, &cqe) == 0) {
        struct slot *slot = io_uring_cqe_get_data(cqe);
        const int result = cqe->res;

        io_uring_cqe_seen(&queue->ring, cqe);
        if (result != UBLK_IO_RES_OK)
            queue->fetching--;
        else if (send_request(slot, &queue->requests[slot->tag]) == -1)
            fetch(slot, UBLK_U_IO_COMMIT_AND_FETCH_REQ, -EIO);
    }
}

/* Wait for the kernel or the server, and take what the server sent. */
static void wait_for_more(struct queue *queue) {
    struct pollfd ring = {.fd = queue->ring.ring_fd, .events = POLLIN};

    /* It fails when the connection breaks, after answered() was called for what was under way, and from then on. */
    if (nbd_poll2(queue->nbd, ring.fd, -1) == -1 && !io_uring_sq_ready(&queue->ring))
        poll(&ring, 1, -1);
}

static void *serve(void *data) {
    struct queue *queue = data;
    unsigned tag;

    for (tag = 0; tag < DEPTH; tag++)
        fetch(&queue->slots[tag], UBLK_U_IO_FETCH_REQ, 0);
    for (queue->fetching = DEPTH; queue->fetching; receive(queue)) {
        check("io_uring_submit", io_uring_submit(&queue->ring));
        wait_for_more(queue);
    }
    return NULL;
}

static void connect_queue(struct queue *queue, unsigned index, const char *uri) {
    queue->index = index;
    queue->nbd = nbd_create();
    if (!queue->nbd || nbd_connect_uri(queue->nbd, uri) == -1)
        fail(uri, nbd_get_error());
}

static size_t requests_size(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (DEPTH * sizeof(struct ublksrv_io_desc) + page - 1) / page * page;
}

static void start_queue(struct queue *queue, int device) {
    const size_t place = queue->index * UBLK_MAX_QUEUE_DEPTH * sizeof(struct ublksrv_io_desc);
    unsigned tag;

    queue->device = device;
    queue->requests =
        mmap(NULL, requests_size(), PROT_READ, MAP_SHARED, device, (off_t)(UBLKSRV_CMD_BUF_OFFSET + place));
    if (queue->requests == MAP_FAILED)
        fail("mmap", strerror(errno));
    check("io_uring", io_uring_queue_init(DEPTH, &queue->ring, 0));
    for (tag = 0; tag < DEPTH; tag++) {
        queue->slots[tag].queue = queue;
        queue->slots[tag].tag = tag;
    }
    check("pthread_create", -pthread_create(&queue->thread, NULL, serve, queue));
}

/* Its thread ends when the device is stopped. */
static void end_queue(struct queue *queue) {
    pthread_join(queue->thread, NULL);
    nbd_shutdown(queue->nbd, 0);
    nbd_close(queue->nbd);
    io_uring_queue_exit(&queue->ring);
    munmap((void *)queue->requests, requests_size());
}

/* The driver and our device. */
struct bridge {
    struct queue queues[QUEUES];
    int driver, device;
    struct io_uring ring;
    __u32 id;
};

/* Give a command to the driver; some take an argument and change it. */
static void control(struct bridge *bridge, unsigned command, void *argument, __u16 length, __u64 number) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&bridge->ring);
    struct io_uring_cqe *cqe;
    const struct ublksrv_ctrl_cmd about = {
        .dev_id = bridge->id, .queue_id = (__u16)-1, .addr = (uintptr_t)argument, .len = length, .data = {number}};

    io_uring_prep_rw(IORING_OP_URING_CMD, sqe, bridge->driver, NULL, 0, 0);
    sqe->cmd_op = command;
    memcpy(sqe->cmd, &about, sizeof(about));
    check("io_uring_submit", io_uring_submit(&bridge->ring));
    check("io_uring_wait_cqe", io_uring_wait_cqe(&bridge->ring, &cqe));
    check("the ublk driver", cqe->res);
    io_uring_cqe_seen(&bridge->ring, cqe);
}

static int open_device(const char *path) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);

    check(path, fd == -1 ? -errno : 0);
    return fd;
}

static struct ublk_params parameters(struct nbd_handle *nbd) {
    return (struct ublk_params){
        .len = sizeof(struct ublk_params),
        .types = UBLK_PARAM_TYPE_BASIC | UBLK_PARAM_TYPE_DISCARD,
        .basic =
            {
                /* Without the first the kernel sends no flush, without the second a flush after each write. */
                .attrs = (nbd_can_flush(nbd) > 0 ? UBLK_ATTR_VOLATILE_CACHE : 0) |
                         (nbd_can_fua(nbd) > 0 ? UBLK_ATTR_FUA : 0) |
                         (nbd_is_read_only(nbd) > 0 ? UBLK_ATTR_READ_ONLY : 0),
                .logical_bs_shift = SECTOR_SHIFT,
                .physical_bs_shift = BLOCK_SHIFT,
                .io_opt_shift = BLOCK_SHIFT,
                .io_min_shift = BLOCK_SHIFT,
                .max_sectors = MAX_TRANSFER >> SECTOR_SHIFT,
                .dev_sectors = (__u64)nbd_get_size(nbd) >> SECTOR_SHIFT,
            },
        .discard =
            {
                .discard_granularity = 1u << BLOCK_SHIFT,
                .max_discard_sectors = nbd_can_trim(nbd) > 0 ? MAX_SECTORS : 0,
                .max_write_zeroes_sectors = nbd_can_zero(nbd) > 0 ? MAX_SECTORS : 0,
                .max_discard_segments = 1,
            },
    };
}

static void add_device(struct bridge *bridge) {
    struct ublksrv_ctrl_dev_info info = {
        .nr_hw_queues = QUEUES, .queue_depth = DEPTH, .max_io_buf_bytes = MAX_TRANSFER, .dev_id = (__u32)-1};
    struct ublk_params params = parameters(bridge->queues[0].nbd);
    char path[32];
    unsigned index;

    bridge->driver = open_device("/dev/ublk-control");
    check("io_uring", io_uring_queue_init(1, &bridge->ring, IORING_SETUP_SQE128));
    bridge->id = info.dev_id;
    control(bridge, UBLK_U_CMD_ADD_DEV, &info, sizeof(info), 0);
    bridge->id = info.dev_id;
    control(bridge, UBLK_U_CMD_SET_PARAMS, &params, sizeof(params), 0);
    snprintf(path, sizeof(path), "/dev/ublkc%" PRIu32, bridge->id);
    bridge->device = open_device(path);
    for (index = 0; index < QUEUES; index++)
        start_queue(&bridge->queues[index], bridge->device);
    control(bridge, UBLK_U_CMD_START_DEV, NULL, 0, (__u64)getpid()); /* reads from it, too */
}

static void remove_device(struct bridge *bridge) {
    unsigned index;

    control(bridge, UBLK_U_CMD_STOP_DEV, NULL, 0, 0); /* after the last write was answered */
    for (index = 0; index < QUEUES; index++)
        end_queue(&bridge->queues[index]);
    close(bridge->device);
    control(bridge, UBLK_U_CMD_DEL_DEV, NULL, 0, 0);
}

int main(int argc, char **argv) {
    static struct bridge bridge;
    sigset_t signals;
    unsigned index;
    int signal;

    if (argc != 2)
        fail("usage", "ublk_bridge URI");
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    for (index = 0; index < QUEUES; index++)
        connect_queue(&bridge.queues[index], index, argv[1]);
    add_device(&bridge);
    printf("/dev/ublkb%" PRIu32 "\n", bridge.id);
    fflush(stdout);
    sigwait(&signals, &signal);
    remove_device(&bridge);
    return EXIT_SUCCESS;
}
