/* SPDX-License-Identifier: Apache-2.0 */

/* What a lane's client may ask for, and how that is written. */

#include "laneclient.h"

#define REQUEST 0x25609513u
#define EXTENDED_REQUEST 0x21e41c71u

bool has_chunks(const struct lane_client *client) {
    return client->flags & (IOU_LANE_STRUCTURED | IOU_LANE_EXTENDED);
}

bool is_write(unsigned command) {
    return command == CMD_WRITE || command == CMD_WRITE_ZEROES || command == CMD_TRIM;
}

static size_t put(char *place, uint64_t number, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i++)
        place[i] = (char)(number >> 8 * (bytes - 1 - i));
    return bytes;
}

size_t put_header(const struct lane_client *client, char *header, const struct sent *request) {
    bool extended = client->flags & IOU_LANE_EXTENDED;
    size_t size = put(header, extended ? EXTENDED_REQUEST : REQUEST, 4);
    size += put(header + size, request->flags, 2);
    size += put(header + size, request->command, 2);
    size += put(header + size, request->cookie, 8);
    size += put(header + size, request->offset, 8);
    return size + put(header + size, request->length, extended ? 8 : 4);
}

/* EXPORT_SIZE is 2^40: only extended headers have a length that passes it. */
static void choose_bad(struct lane_client *client, struct sent *request) {
    bool read_only = client->flags & IOU_LANE_READ_ONLY;
    *request = (struct sent){.offset = EXPORT_SIZE - 100, .length = 4000, .seed = 5, .expected = NBD_EINVAL};
    switch (below(&client->random, 9)) {
    case 0:
        request->command = 77;
        break;
    case 1:
        request->command = CMD_READ;
        request->flags = 1 << 15;
        break;
    case 2:
        request->command = CMD_READ;
        break;
    case 3:
        request->command = CMD_WRITE;
        request->expected = read_only ? NBD_EPERM : NBD_ENOSPC;
        break;
    case 4:
        request->command = CMD_WRITE_ZEROES;
        request->offset = UINT64_MAX;
        request->length = UINT32_MAX;
        request->expected = read_only ? NBD_EPERM : NBD_ENOSPC;
        break;
    case 5:
        request->command = CMD_READ;
        request->offset = 0;
        request->length = MAX_PAYLOAD + 1;
        request->expected = NBD_EOVERFLOW;
        break;
    case 6:
        request->command = CMD_WRITE;
        request->offset = 0;
        request->length = below(&client->random, 20) ? 1 : MAX_PAYLOAD + 1;
        request->flags = request->length == 1 ? FLAG_REQ_ONE : 0;
        request->expected = read_only && request->length > 1 ? NBD_EPERM : NBD_EINVAL;
        break;
    case 7:
        request->command = CMD_BLOCK_STATUS;
        request->offset = request->length = 0;
        break;
    default:
        request->command = CMD_DISC;
        request->flags = FLAG_DF;
    }
}

static void choose_empty(struct lane_client *client, struct sent *request) {
    static const uint16_t COMMANDS_WITHOUT_RANGE[] = {CMD_READ,         CMD_WRITE, CMD_TRIM,
                                                      CMD_WRITE_ZEROES, CMD_CACHE, CMD_FLUSH};
    *request = (struct sent){.command = COMMANDS_WITHOUT_RANGE[below(&client->random, 6)]};
    if (client->flags & IOU_LANE_READ_ONLY && is_write(request->command))
        request->expected = NBD_EPERM;
}

static unsigned choose_command(struct lane_client *client, const struct area *area) {
    static const uint16_t KINDS[] = {CMD_READ,  CMD_READ,  CMD_READ,         CMD_READ, CMD_WRITE,
                                     CMD_WRITE, CMD_WRITE, CMD_WRITE_ZEROES, CMD_TRIM, CMD_BLOCK_STATUS};
    unsigned command = KINDS[below(&client->random, sizeof(KINDS) / sizeof(*KINDS))];
    if (command == CMD_BLOCK_STATUS && !(client->flags & IOU_LANE_STATUS))
        return CMD_READ;
    if (area->content == UNKNOWN && !(client->flags & IOU_LANE_READ_ONLY) && command != CMD_WRITE_ZEROES)
        return CMD_WRITE;
    return command;
}

static unsigned choose_flags(struct lane_client *client, unsigned command) {
    unsigned flags = below(&client->random, 30) ? 0 : FLAG_FUA;
    bool other = below(&client->random, 4) == 0;
    if (command == CMD_READ && has_chunks(client) && other)
        flags |= FLAG_DF;
    if (command == CMD_WRITE && client->flags & IOU_LANE_EXTENDED)
        flags |= FLAG_PAYLOAD_LEN;
    if (command == CMD_WRITE_ZEROES)
        flags |= (other ? FLAG_NO_HOLE : 0) | (below(&client->random, 6) ? 0 : FLAG_FAST_ZERO);
    if (command == CMD_BLOCK_STATUS && other)
        flags |= FLAG_REQ_ONE;
    return flags;
}

/* Long ones seldom. */
struct area *choose_area(struct lane_client *client) {
    for (;;) {
        uint64_t number = below(&client->random, AREAS);
        if (number < 2 && below(&client->random, 8))
            continue;
        struct area *area = &client->areas[number];
        if (!area->busy)
            return area;
    }
}

void choose_request(struct lane_client *client, struct sent *request) {
    uint64_t dice = below(&client->random, 100);
    if (dice < 6) {
        choose_bad(client, request);
        return;
    }
    if (dice < 12) {
        choose_empty(client, request);
        return;
    }
    struct area *area = choose_area(client);
    uint16_t command = (uint16_t)choose_command(client, area);
    *request = (struct sent){
        .command = command,
        .flags = (uint16_t)choose_flags(client, command),
        .offset = area->offset,
        .length = area->length,
        .seed = next_random(&client->random),
        .area = area,
        .expected = client->flags & IOU_LANE_READ_ONLY && is_write(command) ? NBD_EPERM : 0,
    };
    area->busy = true;
}
