/* SPDX-License-Identifier: Apache-2.0 */

/* What an NBD server sends: it is received into the memory of its request, and nowhere else; each request ends once,
   and a READ that succeeds has every byte. seeds.py has the requests, too. */

#include "fuzz.h"

#include "nbd_client/replies.h"

#define ASKED 5u
#define GUARD 64u
#define UNTOUCHED 0x55
#define MOST_STREAM ((size_t)1 << 20)

struct server {
    struct requests requests;
    struct agreed agreed;
    struct contexts contexts;
    struct replies replies;
    struct nbd_request asked[ASKED]; /* by their cookies, less 1 */
    bool has_ended[ASKED];
    char *memory[ASKED];
    iou_extent told[5];
    uint64_t tells; /* what is asked for */
    bool apart;     /* each bitmap by itself */
};

static struct nbd_request *find_asked(struct requests *requests, uint64_t cookie) {
    struct server *server = container_of(requests, struct server, requests);
    return cookie - 1 < ASKED && !server->has_ended[cookie - 1] ? &server->asked[cookie - 1] : NULL;
}

static void refuse(struct requests *requests, struct nbd_request *request, const char *text, size_t length) {
    static char seen[4096];
    (void)requests;
    CHECK(request->error && length <= sizeof(seen));
    memcpy(seen, text, length);
}

static const char *end(struct requests *requests, struct nbd_request *request) {
    struct server *server = container_of(requests, struct server, requests);
    size_t number = (size_t)(request - server->asked);
    CHECK(number < ASKED && !server->has_ended[number]);
    server->has_ended[number] = true;
    if (!request->error && request->command == CMD_READ) /* a stream has no byte of this value, see run() */
        CHECK(!memchr(server->memory[number] + GUARD, UNTOUCHED, request->length));
    return NULL;
}

static void ask(struct server *server, unsigned number, uint16_t command, uint16_t flags, uint64_t offset,
                uint64_t length) {
    struct nbd_request *request = &server->asked[number];
    *request = (struct nbd_request){.command = command, .flags = flags, .offset = offset, .length = length};
    request->cookie = number + 1;
    if (command == CMD_BLOCK_STATUS)
        request->status = status_new(&server->contexts, server->tells, server->apart, offset, server->told, 5);
    server->memory[number] = malloc(length + 2 * GUARD);
    CHECK(server->memory[number] && (request->status || command != CMD_BLOCK_STATUS));
    memset(server->memory[number], UNTOUCHED, length + 2 * GUARD);
    request->memory = server->memory[number] + GUARD;
}

static void check_end(struct server *server, unsigned number) {
    struct nbd_request *request = &server->asked[number];
    iou_extent *extents = server->told;
    uint64_t length = request->length, place = request->offset;
    for (unsigned i = 0; i < GUARD; i++)
        CHECK(server->memory[number][i] == UNTOUCHED && server->memory[number][GUARD + length + i] == UNTOUCHED);
    int64_t count = request->status ? status_merge(request->status, place, place + length, extents, 5) : 0;
    for (int64_t i = 0; i < count; i++) {
        CHECK(extents[i].end > place && !(extents[i].flags & ~server->tells));
        CHECK(server->apart || extents[i].flags < 2 * IOU_EXTENT_DIRTY);
        CHECK(i == 0 || extents[i].flags != extents[i - 1].flags);
        place = extents[i].end;
    }
    CHECK(place <= request->offset + length);
    ranges_free(&request->others);
    free(request->status);
    free(server->memory[number]);
}

/* Receive at most `step` bytes at once; 0: as many as there is room for. */
static void receive(struct server *server, const char *data, size_t length, unsigned step) {
    const char *violation = NULL;
    while (length && !violation) {
        struct iovec parts[2];
        unsigned count = replies_space(&server->replies, parts);
        size_t most = step ? min_u64(step, length) : length, taken = 0;
        for (unsigned i = 0; i < count; i++) {
            size_t part = min_u64(most - taken, parts[i].iov_len);
            memcpy(parts[i].iov_base, data + taken, part);
            taken += part;
        }
        CHECK(taken);
        violation = replies_received(&server->replies, taken);
        data += taken;
        length -= taken;
    }
}

/* A byte for the form of replies, whether there are two bitmaps, whether they are asked for apart, and whether one
   context is wanted; one for how the stream is cut; the stream. */
static void run(const char *data, size_t size) {
    struct input input = {data, data + size};
    unsigned form = take_byte(&input), step = take_byte(&input);
    struct bytes stream = {0};
    struct server server = {.requests = {find_asked, refuse, end}};
    server.agreed = (struct agreed){.structured = form & 3, .extended = form & 2};
    server.contexts = (struct contexts){
        .count = form & 4 ? 4 : 2,
        .list = {{1, IOU_EXTENT_ZERO}, {2, IOU_EXTENT_HOLE}, {3, IOU_EXTENT_DIRTY}, {4, 2 * IOU_EXTENT_DIRTY}},
    };
    server.apart = form & 8;
    server.tells = form & 16 ? 2 : form & 4 ? 15 : 3;
    CHECK(replies_init(&server.replies, &server.requests, &server.agreed) == 0);
    ask(&server, 0, CMD_READ, 0, 4096, 512);
    ask(&server, 1, CMD_READ, 0, 0, 70016);
    ask(&server, 2, CMD_WRITE, 0, 0, 4096);
    ask(&server, 3, CMD_BLOCK_STATUS, 0, 4096, 65536);
    ask(&server, 4, CMD_WRITE_ZEROES, FLAG_FAST_ZERO, 0, 9);
    expand(input, &stream, MOST_STREAM);
    for (size_t i = 0; i < stream.length; i++) /* what was not received is known by it */
        if (stream.data[i] == UNTOUCHED)
            stream.data[i]++;
    receive(&server, stream.data, stream.length, step);
    for (unsigned i = 0; i < ASKED; i++)
        check_end(&server, i);
    replies_free(&server.replies);
    bytes_free(&stream);
}

const struct target nbd_client_target = {"nbd_client", NULL, run};
