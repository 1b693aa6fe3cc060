/* SPDX-License-Identifier: Apache-2.0 */

/* An NBD server that answers in any order, and, if it is hostile, what no server may answer. */

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/big_endian.h"
#include "nbdserver.h"

#define MOST_PENDING 8
#define MAX_HEAD 64

struct asked {
    uint16_t flags, command;
    uint64_t cookie, offset, length;
};

struct served {
    struct nbd_server *server;
    int fd;
    uint64_t random;
    struct asked pending[MOST_PENDING];
    unsigned count;
};

static bool get(int fd, void *memory, size_t length) {
    return recv(fd, memory, length, MSG_WAITALL) == (ssize_t)length;
}

/* Send all, or a part and no more. */
static bool put(struct served *served, const void *data, size_t length) {
    bool stops = served->server->hostile && below(&served->random, 3000) == 0;
    size_t part = stops ? below(&served->random, length + 1) : length;
    for (size_t sent = 0; sent < part;) {
        ssize_t count = send(served->fd, (const char *)data + sent, part - sent, MSG_NOSIGNAL);
        if (count <= 0)
            return false;
        sent += (size_t)count;
    }
    return !stops;
}

/* ---- replies ---------------------------------------------------------------------------------------------------- */

static size_t head(const struct served *served, char *place, const struct asked *asked, uint16_t type, bool done,
                   uint64_t length) {
    bool extended = served->server->extended;
    put32(place, extended ? 0x6E8A278Cu : 0x668E33EFu);
    put16(place + 4, done);
    put16(place + 6, type);
    put64(place + 8, asked->cookie);
    if (!extended) {
        put32(place + 16, (uint32_t)length);
        return 20;
    }
    put64(place + 16, asked->offset);
    put64(place + 24, length);
    return 32;
}

static size_t simple(char *place, const struct asked *asked, uint32_t error) {
    put32(place, 0x67446698u);
    put32(place + 4, error);
    put64(place + 8, asked->cookie);
    return 16;
}

/* Send a part of the data of a READ as a chunk: as a hole if it is zeros. */
static bool send_part(struct served *served, const struct asked *asked, const char *data, uint64_t start, uint64_t end,
                      bool done) {
    char place[MAX_HEAD];
    bool hole = iou_is_zero(data + start, end - start);
    size_t size = head(served, place, asked, hole ? 2 : 1, done, hole ? 12 : 8 + end - start);
    put64(place + size, asked->offset + start);
    if (hole)
        put32(place + size + 8, (uint32_t)(end - start));
    return put(served, place, size + (hole ? 12 : 8)) && (hole || put(served, data + start, end - start));
}

static bool send_data(struct served *served, const struct asked *asked, const char *data) {
    char place[MAX_HEAD];
    uint64_t middle = below(&served->random, asked->length + 1);
    if (!served->server->structured)
        return put(served, place, simple(place, asked, 0)) && put(served, data, asked->length);
    if (middle == 0 || middle == asked->length)
        return send_part(served, asked, data, 0, asked->length, true);
    return send_part(served, asked, data, middle, asked->length, false) &&
           send_part(served, asked, data, 0, middle, true);
}

static bool send_status(struct served *served, const struct asked *asked) {
    char place[MAX_HEAD];
    bool extended = served->server->extended;
    size_t size = head(served, place, asked, extended ? 6 : 5, true, extended ? 24 : 12);
    put32(place + size, 7);
    if (extended) {
        put32(place + size + 4, 1);
        put64(place + size + 8, asked->length);
        put64(place + size + 16, 0);
    } else {
        put32(place + size + 4, (uint32_t)asked->length);
        put32(place + size + 8, 0);
    }
    return put(served, place, size + (extended ? 24 : 12));
}

static bool send_end(struct served *served, const struct asked *asked, uint32_t error) {
    char place[MAX_HEAD];
    if (!served->server->extended && (!served->server->structured || below(&served->random, 2)))
        return put(served, place, simple(place, asked, error));
    size_t size = head(served, place, asked, error ? 0x8001 : 0, true, error ? 8 : 0);
    if (error) {
        put32(place + size, error);
        put16(place + size + 4, 2);
        memcpy(place + size + 6, "no", 2);
        size += 8;
    }
    return put(served, place, size);
}

/* What no server may send. False: the connection ends. */
static bool lie(struct served *served, struct asked *asked) {
    char place[MAX_HEAD];
    switch (below(&served->random, 6)) {
    case 0:
        asked->cookie += 1 + below(&served->random, 200);
        return true;
    case 1:
        return put(served, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    case 2: /* data outside of what was asked for */
        asked->offset += 1 + below(&served->random, 1 << 20);
        return true;
    case 3: { /* a length that nobody has memory for */
        size_t size = head(served, place, asked, (uint16_t)below(&served->random, 8), true, UINT32_MAX - 5);
        return put(served, place, size);
    }
    case 4: /* twice */
        return send_end(served, asked, 0);
    default:
        return false;
    }
}

static bool answer(struct served *served, struct asked asked) {
    struct nbd_server *server = served->server;
    bool outside = asked.offset > server->size || asked.length > server->size - asked.offset, well = true;
    char *copy = NULL;
    if (outside)
        return send_end(served, &asked, 22);
    if (server->hostile && below(&served->random, 400) == 0)
        return send_end(served, &asked, below(&served->random, 2) ? 108 : 5);
    if (asked.command == 0 && asked.length) {
        copy = malloc(asked.length);
        pthread_mutex_lock(&server->lock);
        memcpy(copy, server->content + asked.offset, asked.length);
        pthread_mutex_unlock(&server->lock);
    }
    if (server->hostile && below(&served->random, 1000) == 0)
        well = lie(served, &asked);
    if (well)
        well = copy                 ? send_data(served, &asked, copy)
               : asked.command == 7 ? send_status(served, &asked)
                                    : send_end(served, &asked, 0);
    free(copy);
    return well;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

/* A change is made when it has come as a whole. */
static bool change(struct served *served, const struct asked *asked) {
    struct nbd_server *server = served->server;
    bool inside = asked->offset <= server->size && asked->length <= server->size - asked->offset;
    char *payload = asked->command == 1 ? malloc(asked->length + 1) : NULL;
    if (payload && !get(served->fd, payload, asked->length)) {
        free(payload);
        return false;
    }
    pthread_mutex_lock(&server->lock);
    if (inside && payload)
        memcpy(server->content + asked->offset, payload, asked->length);
    if (inside && asked->command == 6)
        memset(server->content + asked->offset, 0, asked->length);
    pthread_mutex_unlock(&server->lock);
    free(payload);
    return true;
}

static bool take(struct served *served) {
    char header[32];
    struct asked *asked = &served->pending[served->count];
    bool extended = served->server->extended;
    if (!get(served->fd, header, extended ? 32 : 28))
        return false;
    CHECK(get32(header) == (extended ? 0x21E41C71u : 0x25609513u));
    *asked = (struct asked){get16(header + 4), get16(header + 6), get64(header + 8), get64(header + 16),
                            extended ? get64(header + 24) : get32(header + 24)};
    served->count++;
    return asked->command != 2 && change(served, asked);
}

static void *serve(void *argument) {
    struct served *served = argument;
    bool goes_on = true;
    while (goes_on) {
        struct pollfd polled = {.fd = served->fd, .events = POLLIN};
        bool comes = poll(&polled, 1, served->count ? 0 : -1) > 0;
        if (comes && served->count < MOST_PENDING && below(&served->random, 4)) {
            goes_on = take(served);
        } else if (served->count) {
            unsigned chosen = (unsigned)below(&served->random, served->count);
            struct asked asked = served->pending[chosen];
            served->pending[chosen] = served->pending[--served->count];
            goes_on = answer(served, asked);
        }
    }
    close(served->fd);
    served->server->connections--;
    free(served);
    return NULL;
}

int nbd_server_connect(struct nbd_server *server, uint64_t seed) {
    struct served *served = calloc(1, sizeof(*served));
    pthread_t thread;
    int ends[2], little = 1;
    CHECK(served && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)); /* requests are sent in parts */
    *served = (struct served){.server = server, .fd = ends[0], .random = seed | 1};
    server->connections++;
    CHECK(pthread_create(&thread, NULL, serve, served) == 0);
    pthread_detach(thread);
    return ends[1];
}
