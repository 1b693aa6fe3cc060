/* SPDX-License-Identifier: Apache-2.0 */

/* BLAKE2b, in all ways that work on this processor: pieces of any length and alignment, with and without zeros. */

#include "content/blake2b.h"
#include "stress.h"

#define LONGEST 5000u
#define DIGESTS (IOU_HASH_LANES * IOU_HASH_DIGEST)

static void begin(iou_blake2b *state) {
    CHECK(iou_blake2b_begin(state, IOU_HASH_DIGEST) == 0);
}

/* What `printf abc | b2sum -l 256` says. */
static void test_known_digest(void) {
    static const uint8_t known[] = {0xbd, 0xdd, 0x81, 0x3c, 0x63, 0x42, 0x39, 0x72, 0x31, 0x71, 0xef,
                                    0x3f, 0xee, 0x98, 0x57, 0x9b, 0x94, 0x96, 0x4e, 0x3b, 0xb1, 0xcb,
                                    0x3e, 0x42, 0x72, 0x62, 0xc8, 0xc0, 0x68, 0xd5, 0x23, 0x19};
    const void *pieces[IOU_HASH_LANES] = {NULL, "abc", NULL, "abc"};
    uint8_t digests[DIGESTS];
    iou_blake2b state;
    begin(&state);
    CHECK(iou_blake2b_add(&state, pieces, 3, 1) == 0);
    iou_blake2b_digests(&state, digests);
    CHECK(!memcmp(digests + IOU_HASH_DIGEST, known, sizeof(known)));
    CHECK(!memcmp(digests + 3 * IOU_HASH_DIGEST, known, sizeof(known)));
    CHECK(memcmp(digests, known, sizeof(known)));
}

/* What `printf '' | b2sum -l 128` says, of messages without a byte. */
static void test_empty_message(void) {
    static const uint8_t known[] = {0xca, 0xe6, 0x69, 0x41, 0xd9, 0xef, 0xbd, 0x40,
                                    0x4e, 0x4d, 0x88, 0x75, 0x8e, 0xa6, 0x76, 0x70};
    const void *pieces[IOU_HASH_LANES] = {NULL, "", NULL, NULL};
    uint8_t digests[DIGESTS];
    iou_blake2b state;
    CHECK(iou_blake2b_begin(&state, sizeof(known)) == 0 && iou_blake2b_add(&state, pieces, 0, 1) == 0);
    iou_blake2b_digests(&state, digests);
    for (int lane = 0; lane < IOU_HASH_LANES; lane++)
        CHECK(!memcmp(digests + lane * IOU_HASH_DIGEST, known, sizeof(known)));
}

static void test_lengths(void) {
    const void *pieces[IOU_HASH_LANES] = {0};
    iou_blake2b state;
    CHECK(iou_blake2b_begin(&state, 0) == -EINVAL && iou_blake2b_begin(&state, IOU_HASH_DIGEST + 1) == -EINVAL);
    begin(&state);
    CHECK(iou_blake2b_add(&state, pieces, 0, 0) == -EINVAL);
    CHECK(iou_blake2b_add(&state, pieces, IOU_HASH_CHUNK - 1, 0) == -EINVAL);
    CHECK(iou_blake2b_add(&state, pieces, IOU_HASH_CHUNK + 1, 0) == -EINVAL);
    CHECK(state.length == 0);
    CHECK(iou_blake2b_add(&state, pieces, IOU_HASH_CHUNK, 0) == 0 && iou_blake2b_add(&state, pieces, 0, 1) == -EINVAL);
}

/* Messages in pieces of memory that ends with them, so that a byte too many is found. Some lanes have none. */
static void hash_in_pieces(uint64_t *random, const uint8_t *const *messages, uint64_t length, uint8_t *digests) {
    iou_blake2b state;
    begin(&state);
    for (uint64_t start = 0, count; start < length; start += count) {
        count = IOU_HASH_CHUNK * (1 + below(random, 8));
        count = count < length - start ? count : length - start;
        uint8_t *copies[IOU_HASH_LANES];
        const void *pieces[IOU_HASH_LANES];
        for (int lane = 0; lane < IOU_HASH_LANES; lane++) {
            copies[lane] = messages[lane] ? malloc(count) : NULL;
            if (copies[lane])
                memcpy(copies[lane], messages[lane] + start, count);
            pieces[lane] = copies[lane];
        }
        CHECK(iou_blake2b_add(&state, pieces, count, start + count == length) == 0);
        for (int lane = 0; lane < IOU_HASH_LANES; lane++)
            free(copies[lane]);
    }
    iou_blake2b_digests(&state, digests);
}

/* The ways agree chunk by chunk, from states and lengths that no message has, too. */
static void test_ways(uint64_t *random) {
    uint8_t memory[IOU_HASH_LANES][4 * IOU_HASH_CHUNK];
    struct chunks chunks;
    iou_blake2b before, states[BLAKE2B_WAYS];
    for (size_t i = 0; i < sizeof(memory); i++)
        ((uint8_t *)memory)[i] = (uint8_t)next_random(random);
    for (size_t i = 0; i < sizeof(before) / 8; i++)
        ((uint64_t *)&before)[i] = next_random(random);
    for (int lane = 0; lane < IOU_HASH_LANES; lane++) {
        chunks.at[lane] = memory[lane];
        chunks.step[lane] = below(random, 2) * IOU_HASH_CHUNK;
    }
    uint64_t number = below(random, 5), bytes = below(random, 129), final = below(random, 2) ? UINT64_MAX : 0;
    for (int way = 0; way < BLAKE2B_WAYS; way++) {
        states[way] = before;
        if (blake2b_ways[way].works())
            blake2b_ways[way].compress(&states[way], chunks, number, bytes, final);
        else
            printf("%s does not work here\n", blake2b_ways[way].name);
    }
    for (int way = 0; way < BLAKE2B_WAYS; way++)
        CHECK(!blake2b_ways[way].works() || !memcmp(&states[way], &states[BLAKE2B_WAYS - 1], sizeof(before)));
}

void test_hash(unsigned rounds, uint64_t seed) {
    uint64_t random = seed;
    uint8_t memory[IOU_HASH_LANES][LONGEST], first[DIGESTS], second[DIGESTS];
    const uint8_t *messages[IOU_HASH_LANES];
    test_known_digest();
    test_empty_message();
    test_lengths();
    for (unsigned round = 0; round < rounds; round++) {
        uint64_t length = 1 + below(&random, LONGEST);
        for (int lane = 0; lane < IOU_HASH_LANES; lane++) {
            messages[lane] = below(&random, 4) ? memory[lane] : NULL;
            for (uint64_t i = 0; i < length; i++)
                memory[lane][i] = (uint8_t)next_random(&random);
        }
        hash_in_pieces(&random, messages, length, first);
        hash_in_pieces(&random, messages, length, second);
        CHECK(!memcmp(first, second, sizeof(first)));
        test_ways(&random);
    }
}
