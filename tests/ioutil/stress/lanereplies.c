/* SPDX-License-Identifier: Apache-2.0 */

/* What a lane answers: each request once, in the form that was negotiated, with the bytes that the model says. */

#include "laneclient.h"

#include <sys/socket.h>

#define SIMPLE 0x67446698u
#define STRUCTURED 0x668e33efu
#define EXTENDED 0x6e8a278cu
#define DONE 1u

struct reply {
    bool chunk;
    uint32_t error; /* of a simple one */
    uint16_t flags, type;
    uint64_t cookie, length;
};

static uint16_t get16(const char *place) {
    return (uint16_t)((uint8_t)place[0] << 8 | (uint8_t)place[1]);
}

static uint32_t get32(const char *place) {
    return (uint32_t)get16(place) << 16 | get16(place + 2);
}

static uint64_t get64(const char *place) {
    return (uint64_t)get32(place) << 32 | get32(place + 4);
}

/* False: the connection has ended. */
static bool receive(struct lane_client *client, char *data, uint64_t length) {
    while (length) {
        ssize_t count = recv(client->fd, data, length, 0);
        if (count <= 0)
            return false;
        data += count;
        length -= (uint64_t)count;
    }
    return true;
}

static struct sent *find(struct lane_client *client, uint64_t cookie) {
    pthread_mutex_lock(&client->lock);
    struct sent *sent = &client->sent[cookie % MOST_IN_FLIGHT];
    CHECK(sent->busy && sent->cookie == cookie);
    pthread_mutex_unlock(&client->lock);
    return sent;
}

/* ---- the end of a request --------------------------------------------------------------------------------------- */

static bool may_fail(const struct lane_client *client, const struct sent *sent, uint32_t error) {
    if (error == NBD_ESHUTDOWN)
        return client->ending >= ABORT;
    if (sent->flags & FLAG_FAST_ZERO && sent->command == CMD_WRITE_ZEROES)
        return true;
    if (error == NBD_ENOMEM) /* it was waited for, as long as its client may make no progress */
        return client->ending == STALL || client->ending == HOLD;
    if (error == NBD_EOVERFLOW) /* more than there is memory */
        return sent->command == CMD_READ && sent->length > 8 * MIB;
    return error == NBD_EIO && (sent->length || client->remote); /* injected */
}

static void succeed(struct lane_client *client, struct sent *sent) {
    struct area *area = sent->area;
    if (!area)
        return;
    if (sent->command == CMD_READ) {
        CHECK(sent->got == sent->length);
        CHECK(client->remote || area_holds(area, sent->data));
    } else if (sent->command == CMD_WRITE || sent->command == CMD_WRITE_ZEROES) {
        area->content = sent->command == CMD_WRITE ? PATTERN : ZEROS;
        area->seed = sent->seed;
        area->counted = true;
    } else if (sent->command == CMD_TRIM && client->flags & IOU_LANE_SPARSE) {
        area->content = UNKNOWN;
    }
}

static void fail(struct lane_client *client, struct sent *sent, uint32_t error) {
    if (error != NBD_ESHUTDOWN && !may_fail(client, sent, error))
        fprintf(stderr, "command %u flags %u error %u\n", sent->command, sent->flags, error);
    CHECK(may_fail(client, sent, error));
    client->failed += error != NBD_ESHUTDOWN;
    client->shut_down += error == NBD_ESHUTDOWN;
    if (sent->area && is_write(sent->command) && error != NBD_ENOTSUP)
        sent->area->content = UNKNOWN;
}

static void finish(struct lane_client *client, struct sent *sent, uint32_t error) {
    pthread_mutex_lock(&client->lock);
    client->replies[min_u64(sent->command, COMMANDS)]++;
    if (sent->expected)
        CHECK(error == sent->expected);
    else if (error)
        fail(client, sent, error);
    else
        succeed(client, sent);
    if (sent->area)
        sent->area->busy = false;
    free(sent->data);
    *sent = (struct sent){0};
    client->in_flight--;
    pthread_cond_signal(&client->answered);
    pthread_mutex_unlock(&client->lock);
}

/* ---- content ---------------------------------------------------------------------------------------------------- */

static char *place_of(struct sent *sent, uint64_t offset, uint64_t length) {
    CHECK(sent->command == CMD_READ && !sent->expected && length);
    CHECK(offset >= sent->offset && length <= sent->length && offset - sent->offset <= sent->length - length);
    sent->got += length;
    if (!sent->data)
        sent->data = malloc(sent->length);
    CHECK(sent->data);
    return sent->data + (offset - sent->offset);
}

static bool receive_data(struct lane_client *client, struct sent *sent, const struct reply *reply) {
    char offset[8];
    CHECK(reply->length > 8);
    if (!receive(client, offset, 8))
        return false;
    CHECK(!(sent->flags & FLAG_DF) || reply->length - 8 == sent->length);
    return receive(client, place_of(sent, get64(offset), reply->length - 8), reply->length - 8);
}

static bool receive_hole(struct lane_client *client, struct sent *sent, const struct reply *reply) {
    char hole[12];
    CHECK(reply->length == 12);
    if (!receive(client, hole, 12))
        return false;
    memset(place_of(sent, get64(hole), get32(hole + 8)), 0, get32(hole + 8));
    return true;
}

/* Extents from the beginning, without gaps by their nature, not past the end; what is written is no hole. */
static void check_extents(const struct sent *sent, const char *extents, uint64_t length, bool extended) {
    uint64_t size = extended ? 16 : 8, sum = 0;
    CHECK(length && length % size == 0);
    CHECK(!(sent->flags & FLAG_REQ_ONE) || length == size);
    for (const char *extent = extents; extent < extents + length; extent += size) {
        uint64_t covered = extended ? get64(extent) : get32(extent);
        uint64_t status = extended ? get64(extent + 8) : get32(extent + 4);
        CHECK(covered && (status == 0 || status == 3));
        if (sum == 0 && sent->area && sent->area->content == PATTERN && sent->area->seed % 4 && sent->length > 16)
            CHECK(status == 0);
        sum += covered;
    }
    CHECK(sum <= sent->length);
}

static bool receive_status(struct lane_client *client, struct sent *sent, const struct reply *reply) {
    bool extended = client->flags & IOU_LANE_EXTENDED;
    uint64_t head = extended ? 8 : 4;
    CHECK(sent->command == CMD_BLOCK_STATUS && reply->length > head && reply->length < 2 * MIB);
    CHECK(reply->type == (extended ? CHUNK_STATUS_EXT : CHUNK_STATUS) && reply->flags == DONE);
    char *payload = malloc(reply->length);
    CHECK(payload);
    bool received = receive(client, payload, reply->length);
    if (received) {
        CHECK(get32(payload) == 7);
        if (extended)
            CHECK(get32(payload + 4) == (reply->length - head) / 16);
        check_extents(sent, payload + head, reply->length - head, extended);
    }
    free(payload);
    return received;
}

static bool receive_error(struct lane_client *client, const struct reply *reply, uint32_t *error) {
    char payload[6 + 256];
    CHECK(reply->flags == DONE && reply->length >= 6 && reply->length <= sizeof(payload));
    if (!receive(client, payload, reply->length))
        return false;
    *error = get32(payload);
    CHECK(*error && get16(payload + 4) == reply->length - 6);
    return true;
}

/* ---- replies ---------------------------------------------------------------------------------------------------- */

static bool receive_head(struct lane_client *client, struct reply *reply) {
    char head[MAX_HEADER];
    if (!receive(client, head, 16))
        return false;
    uint32_t magic = get32(head);
    *reply = (struct reply){.chunk = magic != SIMPLE};
    if (magic == SIMPLE) {
        CHECK(!(client->flags & IOU_LANE_EXTENDED));
        reply->error = get32(head + 4);
        reply->cookie = get64(head + 8);
        return true;
    }
    bool extended = client->flags & IOU_LANE_EXTENDED;
    CHECK(has_chunks(client) && magic == (extended ? EXTENDED : STRUCTURED));
    reply->flags = get16(head + 4);
    reply->type = get16(head + 6);
    reply->cookie = get64(head + 8);
    uint64_t rest = extended ? 16 : 4;
    if (!receive(client, head + 16, rest))
        return false;
    reply->length = extended ? get64(head + 24) : get32(head + 16);
    if (extended)
        CHECK(get64(head + 16) == find(client, reply->cookie)->offset);
    return true;
}

static bool receive_simple(struct lane_client *client, const struct reply *reply, struct sent *sent) {
    CHECK(!has_chunks(client) || (reply->error == 0 && sent->command != CMD_READ));
    CHECK(sent->command != CMD_BLOCK_STATUS || reply->error);
    if (sent->command == CMD_READ && reply->error == 0 && sent->length &&
        !receive(client, place_of(sent, sent->offset, sent->length), sent->length))
        return false;
    finish(client, sent, reply->error);
    return true;
}

static bool receive_chunk(struct lane_client *client, const struct reply *reply, struct sent *sent) {
    uint32_t error = 0;
    bool received;
    if (reply->type == CHUNK_ERROR)
        received = receive_error(client, reply, &error);
    else if (reply->type == CHUNK_DATA)
        received = receive_data(client, sent, reply);
    else if (reply->type == CHUNK_HOLE)
        received = receive_hole(client, sent, reply);
    else if (reply->type == CHUNK_NONE)
        received = true;
    else
        received = receive_status(client, sent, reply);
    if (received && reply->flags & DONE)
        finish(client, sent, error);
    return received;
}

static void slow_down(const struct lane_client *client, uint64_t *random) {
    if (client->ending == STALL && client->count > 4) {
        while (!client->sent_all)
            usleep(1000);
    } else if (below(random, 100) == 0) {
        usleep((useconds_t)below(random, 30000));
    }
}

void *client_receive(void *argument) {
    struct lane_client *client = argument;
    struct reply reply;
    uint64_t random = client->receiver_random;
    bool received;
    do {
        slow_down(client, &random);
        received = receive_head(client, &reply);
        if (received) {
            struct sent *sent = find(client, reply.cookie);
            received = reply.chunk ? receive_chunk(client, &reply, sent) : receive_simple(client, &reply, sent);
        }
    } while (received);
    pthread_mutex_lock(&client->lock);
    client->closed = true;
    pthread_cond_signal(&client->answered);
    pthread_mutex_unlock(&client->lock);
    return NULL;
}
