/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Many operations of all kinds in flight on a few files, through several queues. Each file is divided into slots of odd
 * sizes, so that neighbours share blocks, and each slot belongs to one client, a thread with a queue of its own. A
 * client has at most one operation in flight on a slot and knows what the slot must hold; so whatever a neighbour's
 * read-modify-write, zero or growth does wrong is seen by a read.
 */

#include "stress.h"

#include <fcntl.h>

#define FILES 3
#define CLIENTS 4
#define SLOTS 240 /* in a file */
#define MAX_SLOT 40000
#define IN_FLIGHT 24

enum { UNKNOWN, ZEROS, PATTERN };

struct slot {
    uint64_t offset, length;
    int content;
    uint64_t seed; /* of the pattern */
    /* the operation in flight */
    bool busy;
    uint32_t kind, flags;
    int next_content;
    uint64_t next_seed;
    char *memory, *buffer; /* buffer is inside memory, at any alignment */
    iou_control control;
};

struct client {
    iou_engine *engine;
    iou_queue *queue;
    iou_handle *handles[FILES];
    struct slot slots[FILES][SLOTS];
    unsigned number;
    uint64_t random, operations;
    uint64_t counts[IOU_EXTENTS + 1], refused, canceled;
};

static void fill(char *buffer, uint64_t length, uint64_t seed) {
    uint64_t state = seed;
    for (uint64_t i = 0; i < length; i += 8) {
        uint64_t word = next_random(&state);
        memcpy(buffer + i, &word, length - i < 8 ? length - i : 8);
    }
}

/* Aligned and unaligned sizes in turn, so that blocks are shared by up to three slots. */
static uint64_t slot_length(uint64_t *random) {
    switch (below(random, 4)) {
    case 0:
        return 1 + below(random, 200);
    case 1:
        return 4096 * (1 + below(random, 4));
    case 2:
        return 512 * (1 + below(random, 20));
    default:
        return 1 + below(random, MAX_SLOT);
    }
}

static void lay_out(struct client clients[CLIENTS], uint64_t seed) {
    for (unsigned file = 0; file < FILES; file++) {
        uint64_t offset = 0, random = seed + file;
        for (unsigned i = 0; i < SLOTS; i++) {
            uint64_t length = slot_length(&random);
            for (unsigned c = 0; c < CLIENTS; c++)
                clients[c].slots[file][i] =
                    (struct slot){.offset = offset, .length = i % CLIENTS == c ? length : 0, .content = UNKNOWN};
            offset += length;
            if (below(&random, 3) == 0) /* the next one starts at a block */
                offset = (offset + 4095) / 4096 * 4096;
        }
    }
}

static struct slot *pick_slot(struct client *client, unsigned *file) {
    for (;;) {
        *file = (unsigned)below(&client->random, FILES);
        struct slot *slot = &client->slots[*file][below(&client->random, SLOTS / CLIENTS) * CLIENTS + client->number];
        if (!slot->busy)
            return slot;
    }
}

/* What to do with a slot next: what is not known must be written first. */
static uint32_t pick_kind(struct client *client, const struct slot *slot) {
    static const uint32_t KINDS[] = {IOU_WRITE, IOU_WRITE, IOU_WRITE,   IOU_ZERO, IOU_ZERO, IOU_READ,
                                     IOU_READ,  IOU_READ,  IOU_EXTENTS, IOU_TRIM, IOU_STAT, IOU_FLUSH};
    uint32_t kind = KINDS[below(&client->random, sizeof(KINDS) / sizeof(*KINDS))];
    if (slot->content == UNKNOWN)
        return kind == IOU_ZERO ? IOU_ZERO : IOU_WRITE;
    if (kind == IOU_FLUSH && below(&client->random, 8))
        return IOU_READ;
    return kind;
}

static uint32_t pick_flags(struct client *client, struct slot *slot) {
    uint32_t flags = 0;
    if (slot->kind == IOU_ZERO)
        flags = (uint32_t)below(&client->random, 4) * IOU_ALLOCATE; /* with and without IOU_FAST_ONLY */
    if ((slot->kind == IOU_ZERO || slot->kind == IOU_WRITE) && below(&client->random, 100) == 0)
        flags |= IOU_FUA;
    return flags;
}

static void prepare_buffer(struct client *client, struct slot *slot) {
    uint64_t size = slot->kind == IOU_EXTENTS ? 16 * sizeof(iou_extent) : slot->length;
    CHECK(posix_memalign((void **)&slot->memory, 4096, size + 4096) == 0);
    /* One half is aligned like the offset, as a server's buffers are. */
    uint64_t shift = below(&client->random, 2) ? slot->offset % 4096 : 8 * below(&client->random, 16);
    slot->buffer = slot->memory + (slot->kind == IOU_EXTENTS ? 0 : shift);
    if (slot->kind == IOU_WRITE)
        fill(slot->buffer, slot->length, slot->next_seed);
}

static void start(struct client *client) {
    unsigned file;
    struct slot *slot = pick_slot(client, &file);
    slot->busy = true;
    slot->kind = pick_kind(client, slot);
    slot->next_seed = next_random(&client->random) | 1;
    slot->next_content = slot->kind == IOU_WRITE  ? PATTERN
                         : slot->kind == IOU_ZERO ? ZEROS
                         : slot->kind == IOU_TRIM ? UNKNOWN
                                                  : slot->content;
    if (slot->kind != IOU_WRITE)
        slot->next_seed = slot->seed;
    slot->control = (iou_control){.canceled = below(&client->random, 50) == 0};
    prepare_buffer(client, slot);
    slot->flags = pick_flags(client, slot);
    bool data = slot->kind == IOU_READ || slot->kind == IOU_WRITE;
    uint64_t size = data ? slot->length : slot->kind == IOU_EXTENTS ? 16 * sizeof(iou_extent) : 0;
    CHECK(iou_submit(client->queue, (uint64_t)(uintptr_t)slot, client->handles[file], slot->kind, slot->flags,
                     slot->offset, slot->length, slot->buffer, size, &slot->control) == 0);
}

static bool holds(const struct slot *slot) {
    if (slot->content == ZEROS)
        return iou_is_zero(slot->buffer, slot->length);
    char *expected = malloc(slot->length);
    CHECK(expected);
    fill(expected, slot->length, slot->seed);
    bool same = memcmp(expected, slot->buffer, slot->length) == 0;
    free(expected);
    return same;
}

static void check_extents(const struct slot *slot, uint32_t count) {
    uint64_t offset = slot->offset;
    const iou_extent *extents = (const iou_extent *)(const void *)slot->buffer;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(extents[i].end > offset);
        offset = extents[i].end;
    }
    CHECK(offset <= slot->offset + slot->length);
    /* A random pattern of a block and more is not a hole. */
    if (count && slot->content == PATTERN && slot->length >= 16)
        CHECK(!extents[0].flags);
}

static void finish(struct client *client, const iou_completion *completion) {
    struct slot *slot = (struct slot *)(uintptr_t)completion->cookie;
    client->counts[slot->kind]++;
    if (completion->error == ENOTSUP && slot->kind == IOU_ZERO) {
        client->refused++; /* IOU_FAST_ONLY: nothing was changed */
        CHECK(completion->done == 0);
    } else if (completion->error == ECANCELED) {
        client->canceled++;
        if (completion->done)
            slot->content = UNKNOWN;
    } else if (slot->flags & IOU_FAST_ONLY && (completion->error == EINVAL || completion->error == EBUSY)) {
        client->refused++; /* half of it was done when the rough storage refused the other half */
        slot->content = UNKNOWN;
    } else {
        if (completion->error)
            fprintf(stderr, "%s: %s: %s\n", iou_kind_name(slot->kind), iou_syscall_name(completion->syscall),
                    strerror(completion->error));
        CHECK(completion->error == 0);
        CHECK(slot->kind == IOU_EXTENTS || slot->control.done == completion->done); /* extents move no bytes */
        CHECK(slot->kind == IOU_STAT || slot->kind == IOU_FLUSH || completion->done == slot->length);
        if (slot->kind == IOU_READ)
            CHECK(holds(slot));
        if (slot->kind == IOU_EXTENTS)
            check_extents(slot, completion->count);
        slot->content = slot->next_content;
        slot->seed = slot->next_seed;
    }
    free(slot->memory);
    slot->busy = false;
}

static void *run_client(void *argument) {
    struct client *client = argument;
    iou_completion completions[8];
    uint64_t started = 0, ended = 0;
    while (ended < client->operations) {
        while (started < client->operations && started - ended < IN_FLIGHT) {
            start(client);
            started++;
        }
        uint32_t count = reap(client->queue, completions, 8);
        for (uint32_t i = 0; i < count; i++)
            finish(client, &completions[i]);
        ended += count;
    }
    return NULL;
}

/* The size at the end is that of the last slot that was written, to the byte, not rounded to a block. */
static void check_sizes(struct client clients[CLIENTS]) {
    for (unsigned file = 0; file < FILES; file++) {
        uint64_t ends = 0;
        iou_info info;
        for (unsigned i = 0; i < SLOTS; i++) {
            const struct slot *slot = &clients[i % CLIENTS].slots[file][i];
            if (slot->content != UNKNOWN)
                ends = slot->offset + slot->length;
        }
        CHECK(iou_submit(clients[0].queue, 0, clients[0].handles[file], IOU_STAT, 0, 0, 0, NULL, 0, NULL) == 0);
        CHECK(reap_one(clients[0].queue).error == 0);
        iou_handle_info(clients[0].handles[file], &info);
        /* A canceled request may have grown the file for a slot that is not known. */
        const struct slot *last = &clients[(SLOTS - 1) % CLIENTS].slots[file][SLOTS - 1];
        CHECK(info.size >= ends && info.size <= last->offset + last->length);
        CHECK(last->content == UNKNOWN || info.size == ends);
    }
}

static void print_counts(const struct client clients[CLIENTS]) {
    printf(" ");
    for (uint32_t kind = IOU_STAT; kind <= IOU_EXTENTS; kind++) {
        uint64_t count = 0;
        for (unsigned c = 0; c < CLIENTS; c++)
            count += clients[c].counts[kind];
        printf(" %s %llu", iou_kind_name(kind), (unsigned long long)count);
    }
    uint64_t refused = 0, canceled = 0;
    for (unsigned c = 0; c < CLIENTS; c++) {
        refused += clients[c].refused;
        canceled += clients[c].canceled;
    }
    printf("; not fast %llu, canceled %llu\n", (unsigned long long)refused, (unsigned long long)canceled);
}

/* Every third client goes through the page cache, beside the others' direct I/O, if mixed. */
static void open_handles(struct client *client, const char *name, bool mixed) {
    char path[4096];
    for (unsigned file = 0; file < FILES; file++) {
        file_path(path, sizeof(path), name, file);
        uint32_t flags = IOU_WRITABLE | (mixed && client->number % 3 == 2 ? IOU_BUFFERED : 0);
        client->handles[file] = open_image(client->queue, path, flags);
    }
}

void test_content(const char *name, uint64_t operations, uint64_t seed, bool mixed) {
    iou_engine *engine;
    pthread_t threads[CLIENTS];
    char path[4096];
    struct client *clients = calloc(CLIENTS, sizeof(*clients));
    CHECK(clients && iou_engine_new(16, 100, &engine) == 0);
    lay_out(clients, seed);
    for (unsigned file = 0; file < FILES; file++) {
        file_path(path, sizeof(path), name, file);
        make_file(path, 0);
    }
    for (unsigned c = 0; c < CLIENTS; c++) {
        clients[c].engine = engine;
        clients[c].number = c;
        clients[c].random = seed * (c + 1) | 1;
        clients[c].operations = operations / CLIENTS;
        CHECK(iou_queue_new(engine, &clients[c].queue) == 0);
        open_handles(&clients[c], name, mixed);
    }
    for (unsigned c = 0; c < CLIENTS; c++)
        CHECK(pthread_create(&threads[c], NULL, run_client, &clients[c]) == 0);
    for (unsigned c = 0; c < CLIENTS; c++)
        CHECK(pthread_join(threads[c], NULL) == 0);
    check_sizes(clients);
    for (unsigned c = 0; c < CLIENTS; c++)
        for (unsigned file = 0; file < FILES; file++)
            close_image(clients[c].queue, clients[c].handles[file]);
    stop_engine(engine);
    for (unsigned c = 0; c < CLIENTS; c++)
        CHECK(iou_queue_free(clients[c].queue) == 0);
    CHECK(iou_engine_free(engine) == 0);
    printf("%s: %llu operations\n", name, (unsigned long long)operations);
    print_counts(clients);
    free(clients);
}

/* ---- system calls that are slow, short and interrupted ---------------------------------------------------------- */

static atomic_uint_fast64_t calls;

uint64_t chance(uint64_t limit) {
    uint64_t state = (atomic_fetch_add(&calls, 1) + 1) * 0x9e3779b97f4a7c15u;
    return below(&state, limit);
}

static size_t shortened(size_t length) {
    return length > 512 && chance(4) == 0 ? 512 * (1 + chance(length / 512)) : length;
}

static bool interrupted(void) {
    if (chance(50) == 0)
        usleep((useconds_t)chance(300));
    errno = EINTR;
    return chance(10) == 0;
}

static ssize_t rough_pread(int fd, void *buffer, size_t length, int64_t offset) {
    return interrupted() ? -1 : pread(fd, buffer, shortened(length), offset);
}

static ssize_t rough_pwrite(int fd, const void *buffer, size_t length, int64_t offset) {
    return interrupted() ? -1 : pwrite(fd, buffer, shortened(length), offset);
}

static int rough_fallocate(int fd, int mode, int64_t offset, int64_t length) {
    if (interrupted())
        return -1;
    if (chance(3) == 0) {
        errno = chance(2) ? EINVAL : EBUSY; /* never learnt, so that all methods stay in use */
        return -1;
    }
    return fallocate(fd, mode, offset, length);
}

static int rough_ftruncate(int fd, int64_t size) {
    return interrupted() ? -1 : ftruncate(fd, size);
}

const iou_syscalls rough_syscalls = {
    .pread = rough_pread, .pwrite = rough_pwrite, .fallocate = rough_fallocate, .ftruncate = rough_ftruncate};

void test_rough_storage(uint64_t operations, uint64_t seed) {
    iou_set_syscalls(&rough_syscalls);
    test_content("rough", operations, seed, false);
    iou_set_syscalls(NULL);
}
