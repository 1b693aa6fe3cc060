/* SPDX-License-Identifier: Apache-2.0 */

/*
 * BLAKE2b without a key, with digests of at most 32 bytes (RFC 7693). It hashes several messages of the same length at
 * once: the blocks of an image. See docs/adr/0023-finalize-and-hashing.md. No function blocks. One thread at a time may
 * use a state.
 */

#ifndef IOUTIL_API_HASH_H
#define IOUTIL_API_HASH_H

#include <stdint.h>

/* The number of messages of a state; how many bytes of each BLAKE2b compresses at once; the most bytes of a digest. */
enum { IOU_HASH_LANES = 4, IOU_HASH_CHUNK = 128, IOU_HASH_DIGEST = 32 };

/* The state of all messages. Owned by the caller; the members are for blake2b.c only. */
typedef struct {
    uint64_t words[8][4]; /* word by word, and in each, message by message */
    uint64_t length;      /* bytes so far, of each message */
} iou_blake2b;

/* Begin with empty messages. The digests will have `digest` bytes, 1 to IOU_HASH_DIGEST. Returns 0 or -EINVAL. */
int iou_blake2b_begin(iou_blake2b *state, uint32_t digest);

/*
 * Add `length` bytes to each message. `pieces` are IOU_HASH_LANES pointers of any alignment; NULL stands for zeros.
 * Pass `last` if the messages end here. Otherwise the length must be a multiple of IOU_HASH_CHUNK, and not 0. It may be
 * 0 with `last` only if the messages are empty. Returns 0, or -EINVAL for another length.
 */
int iou_blake2b_add(iou_blake2b *state, const void *const *pieces, uint64_t length, uint32_t last);

/* Store the digests of ended messages, one after the other, in IOU_HASH_LANES times IOU_HASH_DIGEST bytes. A shorter
   digest is at the beginning of its IOU_HASH_DIGEST bytes. */
void iou_blake2b_digests(const iou_blake2b *state, void *digests);

#endif
