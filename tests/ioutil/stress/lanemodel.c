/* SPDX-License-Identifier: Apache-2.0 */

/* What the areas of a lane's client hold. */

#include "laneclient.h"

#define RUN (64 * KIB)

/* One in four patterns has runs of zeros, which replies tell as holes. */
static bool is_zero_run(uint64_t seed, uint64_t run) {
    return seed % 4 == 0 && seed >> (8 + run % 48) & 1;
}

void pattern_fill(char *data, uint64_t length, uint64_t seed) {
    uint64_t state = seed | 1;
    for (uint64_t i = 0; i < length; i += 8) {
        uint64_t word = is_zero_run(seed, i / RUN) ? 0 : next_random(&state);
        memcpy(data + i, &word, length - i < 8 ? length - i : 8);
    }
}

bool area_holds(const struct area *area, const char *data) {
    if (area->content == UNKNOWN)
        return true;
    if (area->content == ZEROS)
        return iou_is_zero(data, area->length);
    char *expected = malloc(area->length);
    CHECK(expected);
    pattern_fill(expected, area->length, area->seed);
    bool same = memcmp(expected, data, area->length) == 0;
    free(expected);
    return same;
}

/* Sizes of a few bytes up to several pieces, few of which are aligned: neighbours share blocks. */
static uint64_t area_length(unsigned number, uint64_t *random) {
    if (number == 0)
        return 10 * MIB + 333; /* more than all memory */
    if (number == 1)
        return 6 * MIB + 17; /* of these, one at a time is read whole */
    switch (below(random, 5)) {
    case 0:
        return 1 + below(random, 200);
    case 1:
        return 4096 * (1 + below(random, 4));
    case 2:
        return 1 + below(random, 400000);
    default:
        return 1 + below(random, 40000);
    }
}

uint64_t client_lay_out(struct lane_client *client, uint64_t offset, uint64_t seed) {
    client->random = seed | 1;
    for (unsigned i = 0; i < AREAS; i++) {
        client->areas[i] = (struct area){.offset = offset, .length = area_length(i, &client->random), .content = ZEROS};
        offset += client->areas[i].length;
        if (below(&client->random, 4) == 0)
            offset = round_up(offset, 4096);
    }
    return offset;
}

void client_told(struct lane_client *client, uint64_t start, uint64_t end) {
    const struct area *last = &client->areas[AREAS - 1];
    CHECK(start < end && start >= client->areas[0].offset && end <= last->offset + last->length);
    for (unsigned i = 0; i < AREAS; i++) {
        struct area *area = &client->areas[i];
        uint64_t from = max_u64(start, area->offset), to = min_u64(end, area->offset + area->length);
        area->told += from < to ? to - from : 0;
    }
}
