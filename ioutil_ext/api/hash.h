/* SPDX-License-Identifier: Apache-2.0 */

/*
 * BLAKE2b with digests of at most 32 bytes (RFC 7693, no key), of several messages of the same length at once: the
 * blocks of an image. See docs/adr/0023-finalize-and-hashing.md. None of the functions blocks; a state is for one
 * thread at a time.
 */

#ifndef IOUTIL_API_HASH_H
#define IOUTIL_API_HASH_H

#include <stdint.h>

/* The messages of a state; the bytes that BLAKE2b compresses at once, of each; the most bytes of a digest. */
enum { IOU_HASH_LANES = 4, IOU_HASH_CHUNK = 128, IOU_HASH_DIGEST = 32 };

/* The state of all messages. Owned by the caller; the members are for blake2b.c only. */
typedef struct {
    uint64_t words[8][4]; /* word by word, and in each, message by message */
    uint64_t length;      /* bytes so far, of each message */
} iou_blake2b;

/* Begin with empty messages. digest: bytes of the digests, 1 to IOU_HASH_DIGEST; -EINVAL: another number. */
int iou_blake2b_begin(iou_blake2b *state, uint32_t digest);

/*
 * Add length bytes to each message. pieces: IOU_HASH_LANES pointers, of any alignment; NULL: zeros, which are not read.
 * last: the messages end here. -EINVAL: length is 0, and the messages are not empty or do not end; or it is no multiple
 * of IOU_HASH_CHUNK, and they do not end.
 */
int iou_blake2b_add(iou_blake2b *state, const void *const *pieces, uint64_t length, uint32_t last);

/* Put the digests of ended messages, one after the other, into IOU_HASH_LANES times IOU_HASH_DIGEST bytes. A digest
   that has fewer bytes is the first ones of its IOU_HASH_DIGEST. */
void iou_blake2b_digests(const iou_blake2b *state, void *digests);

#endif
