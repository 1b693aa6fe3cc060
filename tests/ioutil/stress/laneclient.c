/* SPDX-License-Identifier: Apache-2.0 */

/* What a lane's client sends: requests of all kinds, as many at a time as it likes, and then an end. */

#include "laneclient.h"

#include <sys/socket.h>

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

/* False: the lane has ended. */
static bool send_all(struct lane_client *client, const char *data, uint64_t length) {
    while (length) {
        uint64_t most = below(&client->random, 8) ? length : 1 + below(&client->random, length);
        ssize_t count = send(client->fd, data, most, MSG_NOSIGNAL);
        if (count < 0)
            return false;
        data += count;
        length -= (uint64_t)count;
    }
    return true;
}

static bool flush(struct lane_client *client) {
    bool sent = send_all(client, client->out, client->out_length);
    client->out_length = 0;
    return sent;
}

/* Requests without a long payload are sent together. */
static bool add(struct lane_client *client, const char *data, uint64_t length) {
    if (client->out_length + length > sizeof(client->out) && !flush(client))
        return false;
    if (length > sizeof(client->out))
        return send_all(client, data, length);
    memcpy(client->out + client->out_length, data, length);
    client->out_length += length;
    return true;
}

static bool send_request(struct lane_client *client, const struct sent *request) {
    char header[MAX_HEADER];
    bool sent = add(client, header, put_header(client, header, request));
    if (sent && request->command == CMD_WRITE && request->length) {
        char *payload = malloc(request->length);
        CHECK(payload);
        pattern_fill(payload, request->length, request->seed);
        sent = add(client, payload, request->length);
        free(payload);
    }
    client->count++;
    return sent;
}

/* Enter the next request. False: none may be sent any more. */
static bool enter(struct lane_client *client, struct sent *request) {
    uint64_t number = 0;
    pthread_mutex_lock(&client->lock);
    bool stalls = client->ending == STALL && client->in_flight == client->most;
    while (client->in_flight == client->most && !client->closed && !stalls)
        pthread_cond_wait(&client->answered, &client->lock);
    bool may = !client->closed && !stalls;
    if (may) {
        choose_request(client, request);
        while (client->sent[number].busy)
            number++;
        request->busy = true;
        request->cookie = (next_random(&client->random) >> 8) * MOST_IN_FLIGHT + number;
        client->sent[number] = *request;
        client->in_flight++;
    }
    pthread_mutex_unlock(&client->lock);
    return may;
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static bool is_full(struct lane_client *client) {
    pthread_mutex_lock(&client->lock);
    bool full = client->in_flight == client->most;
    pthread_mutex_unlock(&client->lock);
    return full;
}

/* A WRITE that nobody waits for, all but the last of it. What it would have written is not known then. */
static void send_part(struct lane_client *client) {
    char header[MAX_HEADER];
    pthread_mutex_lock(&client->lock);
    struct area *area = choose_area(client);
    struct sent request = {.command = CMD_WRITE, .offset = area->offset, .length = area->length, .seed = 1};
    area->busy = true;
    pthread_mutex_unlock(&client->lock);
    if (!(client->flags & IOU_LANE_READ_ONLY))
        area->content = UNKNOWN;
    request.flags = client->flags & IOU_LANE_EXTENDED ? FLAG_PAYLOAD_LEN : 0;
    size_t size = put_header(client, header, &request);
    if (below(&client->random, 2)) {
        send_all(client, header, 1 + below(&client->random, size - 1));
        return;
    }
    char *payload = calloc(1, request.length);
    CHECK(payload);
    if (send_all(client, header, size))
        send_all(client, payload, below(&client->random, request.length));
    free(payload);
}

static void send_oversize(struct lane_client *client) {
    struct sent request = {.command = CMD_WRITE,
                           .length = MAX_DRAINED + 1,
                           .cookie = MOST_IN_FLIGHT - 1,
                           .busy = true,
                           .expected = client->flags & IOU_LANE_READ_ONLY ? NBD_EPERM : NBD_EINVAL};
    struct sent inside = {.command = CMD_FLUSH, .cookie = 1234567}; /* nobody waits for its reply */
    char header[MAX_HEADER];
    pthread_mutex_lock(&client->lock);
    client->sent[request.cookie] = request; /* client->most leaves this one free */
    client->in_flight++;
    pthread_mutex_unlock(&client->lock);
    bool sent = send_all(client, header, put_header(client, header, &request));
    for (unsigned i = 0; i < 300 && sent; i++)
        sent = send_all(client, header, put_header(client, header, &inside));
}

static void end(struct lane_client *client) {
    struct sent request = {.command = CMD_DISC};
    char header[MAX_HEADER] = {"GET / HTTP/1.1"};
    switch (client->ending) {
    case LEAVE:
        send_all(client, header, put_header(client, header, &request));
        break;
    case HALF_CLOSE:
        shutdown(client->fd, SHUT_WR);
        break;
    case CUT:
        send_part(client);
        shutdown(client->fd, SHUT_WR);
        break;
    case GARBAGE:
        send_all(client, header, MAX_HEADER);
        break;
    case OVERSIZE:
        send_oversize(client);
        break;
    case RESET:
        shutdown(client->fd, SHUT_RDWR);
        break;
    case STALL:
        usleep(is_full(client) ? 2000 * SHORT_TIMEOUT_MS : 0);
        shutdown(client->fd, SHUT_WR);
        break;
    case HOLD:
        send_part(client);
        break;
    default: /* the owner does it */
        break;
    }
}

static void *send_requests(void *argument) {
    struct lane_client *client = argument;
    struct sent request;
    bool sent = true;
    while (sent && client->count < client->requests && enter(client, &request)) {
        sent = send_request(client, &request);
        if (sent && (below(&client->random, 3) == 0 || is_full(client)))
            sent = flush(client);
    }
    if (sent && flush(client))
        end(client);
    client->sent_all = true;
    return NULL;
}

/* ---- a connection ----------------------------------------------------------------------------------------------- */

static uint32_t choose_dialect(uint64_t *random) {
    static const uint32_t DIALECTS[] = {0, IOU_LANE_STRUCTURED, IOU_LANE_STRUCTURED | IOU_LANE_STATUS,
                                        IOU_LANE_EXTENDED | IOU_LANE_STATUS};
    return DIALECTS[below(random, 4)] | (below(random, 8) ? 0 : IOU_LANE_READ_ONLY) |
           (below(random, 2) ? IOU_LANE_SPARSE : 0) | (below(random, 2) ? IOU_LANE_COUNT_WRITES : 0);
}

void client_prepare(struct lane_client *client, enum ending ending) {
    uint64_t *random = &client->random;
    client->ending = ending;
    client->flags = choose_dialect(random);
    client->most = 1 + (unsigned)below(random, AREAS - 2); /* an area is free */
    /* An owner's end comes also when nothing more is asked; but not that of a ticket, which only a request meets. */
    client->requests = ending >= EXPIRE || (ending >= ABORT && below(random, 2)) ? 5000 : below(random, 250);
    client->receiver_random = next_random(random);
    client->count = client->in_flight = 0;
    client->closed = client->sent_all = false;
    client->out_length = 0;
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->answered, NULL);
}

void client_start(struct lane_client *client) {
    CHECK(pthread_create(&client->sender, NULL, send_requests, client) == 0);
    CHECK(pthread_create(&client->receiver, NULL, client_receive, client) == 0);
}

/* What was sent in whole is answered before the lane closes the connection, unless one of both breaks it. */
static bool all_answered(const struct lane_client *client) {
    return client->ending <= OVERSIZE;
}

static void forget(struct sent *sent) {
    if (sent->area && is_write(sent->command) && !sent->expected)
        sent->area->content = UNKNOWN;
    free(sent->data);
    *sent = (struct sent){0};
}

void client_join(struct lane_client *client) {
    CHECK(pthread_join(client->sender, NULL) == 0 && pthread_join(client->receiver, NULL) == 0);
    CHECK(client->in_flight == 0 || !all_answered(client));
    for (unsigned i = 0; i < MOST_IN_FLIGHT; i++)
        if (client->sent[i].busy)
            forget(&client->sent[i]);
    for (unsigned i = 0; i < AREAS; i++) {
        struct area *area = &client->areas[i];
        CHECK(!area->counted || !(client->flags & IOU_LANE_COUNT_WRITES) || area->told >= area->length);
        area->busy = area->counted = false;
        area->told = 0;
    }
    pthread_mutex_destroy(&client->lock);
    pthread_cond_destroy(&client->answered);
    close(client->fd);
}
