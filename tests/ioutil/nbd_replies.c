/* SPDX-License-Identifier: Apache-2.0 */

/* The parser of an NBD server's replies, for tests that feed it any bytes; nbd_replies.py calls this. */

#include <stdlib.h>

#include "nbd_client/replies.h"

enum { MOST = 16 };

struct client {
    struct requests requests;
    struct agreed agreed;
    struct contexts contexts;
    struct replies replies;
    struct nbd_request flying[MOST]; /* by their cookies, less 1 */
    uint32_t begun, ended[MOST], ended_count;
    char text[MOST][256];
    const char *violation;
};

static struct nbd_request *find(struct requests *requests, uint64_t cookie) {
    struct client *client = container_of(requests, struct client, requests);
    if (cookie == 0 || cookie > client->begun || !client->flying[cookie - 1].cookie)
        return NULL;
    return &client->flying[cookie - 1];
}

static void refused(struct requests *requests, struct nbd_request *request, const char *text, size_t length) {
    struct client *client = container_of(requests, struct client, requests);
    memcpy(client->text[request->cookie - 1], text, min_u64(length, 255));
}

static const char *ended(struct requests *requests, struct nbd_request *request) {
    struct client *client = container_of(requests, struct client, requests);
    client->ended[client->ended_count++] = (uint32_t)request->cookie;
    request->cookie = 0;
    return NULL;
}

struct client *client_new(int structured, int extended, uint32_t contexts);
void client_free(struct client *client);
uint32_t client_begin(struct client *client, uint16_t command, uint16_t flags, uint64_t offset, uint64_t length,
                      char *memory, uint32_t most, char *header, uint32_t *size);
const char *client_feed(struct client *client, const char *data, size_t length, size_t step);
uint32_t client_ended(const struct client *client, uint32_t number);
uint32_t client_error(const struct client *client, uint32_t cookie, char *text);
int64_t client_extents(struct client *client, uint32_t cookie, uint64_t start, uint64_t end, iou_extent *extents,
                       uint64_t most);

/* contexts: ids from 1 on tell, in turns, zeros, holes and what is dirty. */
struct client *client_new(int structured, int extended, uint32_t contexts) {
    struct client *client = calloc(1, sizeof(*client));
    client->requests = (struct requests){find, refused, ended};
    client->agreed = (struct agreed){.structured = structured, .extended = extended};
    client->contexts.count = contexts;
    for (uint32_t i = 0; i < contexts; i++)
        client->contexts.list[i] = (iou_nbd_context){i + 1, 1u << i % 3};
    replies_init(&client->replies, &client->requests, &client->agreed);
    return client;
}

void client_free(struct client *client) {
    for (uint32_t i = 0; i < client->begun; i++) {
        ranges_free(&client->flying[i].others);
        free(client->flying[i].status);
    }
    replies_free(&client->replies);
    free(client);
}

/* most: runs in each context of a status. */
uint32_t client_begin(struct client *client, uint16_t command, uint16_t flags, uint64_t offset, uint64_t length,
                      char *memory, uint32_t most, char *header, uint32_t *size) {
    struct nbd_request *request = &client->flying[client->begun];
    *request =
        (struct nbd_request){.command = command, .flags = flags, .offset = offset, .length = length, .memory = memory};
    request->cookie = ++client->begun;
    if (command == CMD_BLOCK_STATUS)
        request->status = status_new(&client->contexts, 7, false, offset, NULL, most);
    *size = (uint32_t)request_header(request, client->agreed.extended, header);
    return client->begun;
}

/* Returns the violation, or NULL. step: most bytes that are received at once. */
const char *client_feed(struct client *client, const char *data, size_t length, size_t step) {
    while (length && !client->violation) {
        struct iovec parts[2];
        unsigned count = replies_space(&client->replies, parts);
        size_t taken = 0;
        for (unsigned i = 0; i < count; i++) {
            size_t part = min_u64(min_u64(length - taken, step - taken), parts[i].iov_len);
            memcpy(parts[i].iov_base, data + taken, part);
            taken += part;
        }
        data += taken;
        length -= taken;
        client->violation = replies_received(&client->replies, taken);
    }
    return client->violation;
}

uint32_t client_ended(const struct client *client, uint32_t number) {
    return number < client->ended_count ? client->ended[number] : 0;
}

uint32_t client_error(const struct client *client, uint32_t cookie, char *text) {
    memcpy(text, client->text[cookie - 1], 256);
    return client->flying[cookie - 1].error;
}

int64_t client_extents(struct client *client, uint32_t cookie, uint64_t start, uint64_t end, iou_extent *extents,
                       uint64_t most) {
    return status_merge(client->flying[cookie - 1].status, start, end, extents, most);
}
