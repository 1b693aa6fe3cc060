/* SPDX-License-Identifier: Apache-2.0 */

/* Images that an NBD server has, which answers in any order, dies and lies, while operations are cancelled. */

#include <poll.h>

#include "nbdserver.h"

#define USERS 4
#define AREA (512 * KIB) /* of the image, for each user */
#define LONGEST (200 * KIB)

struct user {
    iou_handle *handle;
    pthread_t thread;
    struct nbd_server *server;
    uint64_t start, random;
    unsigned operations, failed;
    char *model;
    bool known; /* the content of the area is that of the model */
    iou_control control;
    atomic_bool done;
};

/* ---- who uses the image ----------------------------------------------------------------------------------------- */

static int execute(struct user *user, uint32_t kind, uint32_t flags, uint64_t offset, uint64_t length, void *memory,
                   uint64_t size) {
    iou_completion completion;
    int error =
        iou_execute(user->handle, kind, flags, user->start + offset, length, memory, size, &user->control, &completion);
    bool honest = !user->server->hostile && !__atomic_load_n(&user->control.canceled, __ATOMIC_RELAXED);
    CHECK(error == 0 || !honest);
    CHECK(error || kind == IOU_FLUSH || kind == IOU_EXTENTS || completion.done == length);
    user->failed += error != 0;
    return error;
}

/* Let the content be known again: after a change that has failed, the server may have any part of it. */
static void know(struct user *user) {
    if (execute(user, IOU_WRITE, 0, 0, AREA, user->model, 0) == 0)
        user->known = true;
}

static void change(struct user *user, uint64_t offset, uint64_t length) {
    bool zero = below(&user->random, 3) == 0;
    uint32_t fua = below(&user->random, 2) ? IOU_FUA : 0;
    for (uint64_t i = 0; i < length; i++)
        user->model[offset + i] = (char)(zero ? 0 : (i * 7 + length) | 1);
    int error = zero ? execute(user, IOU_ZERO, fua, offset, length, NULL, 0)
                     : execute(user, IOU_WRITE, fua, offset, length, user->model + offset, 0);
    user->known = user->known && !error;
}

static void compare(struct user *user, uint64_t offset, uint64_t length) {
    char *memory = malloc(length + 1);
    memset(memory, 0x55, length + 1);
    if (execute(user, IOU_READ, 0, offset, length, memory, 0) == 0 && user->known && !user->server->hostile)
        CHECK(memcmp(memory, user->model + offset, length) == 0);
    free(memory);
}

static void *use(void *argument) {
    struct user *user = argument;
    for (unsigned i = 0; i < user->operations; i++) {
        uint64_t offset = below(&user->random, AREA), chosen = below(&user->random, 8);
        uint64_t length = below(&user->random, 4) ? below(&user->random, 5000) : below(&user->random, LONGEST);
        iou_extent extents[4];
        length = min_u64(length, AREA - offset);
        __atomic_store_n(&user->control.canceled, 0, __ATOMIC_RELAXED);
        if (!user->known)
            know(user);
        else if (chosen < 3)
            change(user, offset, length);
        else if (chosen < 6)
            compare(user, offset, length);
        else if (chosen == 6)
            user->failed += execute(user, IOU_FLUSH, 0, 0, 0, NULL, 0) != 0 && !user->server->hostile;
        else
            execute(user, IOU_EXTENTS, 0, offset, length + 1, extents, sizeof(extents));
    }
    user->done = true;
    return NULL;
}

/* ---- who connects ----------------------------------------------------------------------------------------------- */

void nbd_begin(iou_handle *handle, struct nbd_server *server, uint64_t *random) {
    const iou_nbd_context context = {7, IOU_EXTENT_ZERO};
    iou_nbd_connection connections[3];
    iou_nbd_session session = {
        .connections = connections,
        .count = 1 + (uint32_t)below(random, 3),
        .flags = server->flags,
        .structured = server->structured,
        .extended = server->extended,
        .most = 64 * KIB,
    };
    for (uint32_t i = 0; i < session.count; i++)
        connections[i] = (iou_nbd_connection){
            .socket = nbd_server_connect(server, next_random(random)),
            .contexts_count = server->structured,
            .contexts = &context,
        };
    CHECK(iou_nbd_client_begin(handle, &session) == 0);
}

void nbd_look_after(iou_handle *handle, struct nbd_server *server, uint64_t *random) {
    iou_nbd_client_state state;
    CHECK(iou_nbd_client_look(handle, &state, true) == 0);
    if (state.life != IOU_NBD_NONE || !state.wanted)
        return;
    if (server->hostile && below(random, 10) == 0)
        CHECK(iou_nbd_client_refuse(handle, "on purpose", false) > 0);
    else
        nbd_begin(handle, server, random);
}

static void look_after(iou_handle *handle, struct nbd_server *server, struct user *users, uint64_t *random) {
    for (bool all = false; !all;) {
        struct pollfd polled = {.fd = iou_nbd_client_fd(handle), .events = POLLIN};
        poll(&polled, 1, 5);
        nbd_look_after(handle, server, random);
        if (server->hostile && below(random, 4) == 0) {
            __atomic_store_n(&users[below(random, USERS)].control.canceled, 1, __ATOMIC_RELAXED);
            CHECK(iou_nbd_client_interrupt(handle) == 0);
        }
        all = true;
        for (unsigned i = 0; i < USERS; i++)
            all = all && users[i].done;
    }
}

void nbd_leave(iou_handle *handle, struct nbd_server *server) {
    iou_nbd_client_state state;
    CHECK(iou_nbd_client_leave(handle, 100) == 0);
    do {
        struct pollfd polled = {.fd = iou_nbd_client_fd(handle), .events = POLLIN};
        poll(&polled, 1, DEADLINE_MS);
        CHECK(iou_nbd_client_look(handle, &state, true) == 0);
    } while (state.life != IOU_NBD_NONE);
    CHECK(iou_nbd_client_free(handle) == 0);
    while (server->connections)
        usleep(500);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

/* Where there is no session, there is no connection to be chosen. */
static void ask_before_a_session(iou_handle *handle) {
    iou_control control = {0};
    iou_completion completion;
    iou_extent extent;
    CHECK(iou_execute(handle, IOU_EXTENTS, IOU_NOW, 0, 4096, &extent, sizeof(extent), &control, &completion) != 0);
}

static unsigned play(struct nbd_server *server, unsigned operations, uint64_t *random) {
    struct user users[USERS] = {0};
    unsigned failed = 0;
    const iou_nbd_client_options options = {
        .name = "nbd",
        .size = server->size,
        .piece = 64 * KIB,
        .ahead = 1,
        .block_size = (uint32_t[]){1, 512, 4096}[below(random, 3)],
        .allocation = true,
        .close_ms = 100,
    };
    iou_handle *handle;
    CHECK(iou_nbd_client_new(&options, &handle) == 0);
    ask_before_a_session(handle);
    nbd_begin(handle, server, random);
    for (unsigned i = 0; i < USERS; i++) {
        users[i] = (struct user){.handle = handle, .server = server, .start = i * AREA, .operations = operations};
        users[i].random = next_random(random) | 1;
        users[i].model = calloc(1, AREA);
        CHECK(users[i].model && pthread_create(&users[i].thread, NULL, use, &users[i]) == 0);
    }
    look_after(handle, server, users, random);
    for (unsigned i = 0; i < USERS; i++) {
        pthread_join(users[i].thread, NULL);
        failed += users[i].failed;
        free(users[i].model);
    }
    nbd_leave(handle, server);
    return failed;
}

void test_nbd_client(unsigned rounds, uint64_t seed) {
    uint64_t random = seed;
    unsigned failed = 0;
    for (unsigned i = 0; i < rounds; i++) {
        struct nbd_server server = {
            .size = USERS * AREA,
            .flags = 0x0ced | (below(&random, 2) ? 0x100 : 0),
            .structured = i % 3 > 0,
            .extended = i % 3 > 1,
            .hostile = i % 2,
        };
        server.flags &= ~(below(&random, 2) ? 0x48u : 0u); /* neither FUA nor zeroing */
        pthread_mutex_init(&server.lock, NULL);
        server.content = calloc(1, server.size);
        failed += play(&server, 100, &random);
        free(server.content);
        pthread_mutex_destroy(&server.lock);
    }
    printf("nbd client: %u servers, %u operations failed\n", rounds, failed);
}
