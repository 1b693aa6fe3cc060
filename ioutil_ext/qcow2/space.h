/* SPDX-License-Identifier: Apache-2.0 */

/* The space of the file (space.c): taking clusters and giving them back. Call these functions with the image's lock
   held. All functions with an operation may release it for a while. */

#ifndef IOUTIL_QCOW2_SPACE_H
#define IOUTIL_QCOW2_SPACE_H

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/qcow2.h"

/* Clusters that follow each other, each with a reference count of 1. */
struct taken {
    uint64_t first, count;
    bool zeros;    /* they read as zeros, also after a power cut */
    bool reserved; /* zeros that the file has space for; those that were punched are holes of it */
};

/* Which clusters to take: any, preferably those that read as zeros, or those behind all others. */
enum wanted { WANT_ANY, WANT_ZEROS, WANT_TAIL };

/* Return whether an error means that the file cannot grow, for want of space or because of a limit. Its free clusters
   can still be taken. */
static inline bool space_is_full(int64_t error) {
    return error == -ENOSPC || error == -EDQUOT || error == -EFBIG;
}

/* Take at most `count` clusters, at least one. Returns 0 or a negative errno, see space_is_full(). */
int space_take(struct qcow2 *q, struct op *op, uint64_t count, enum wanted wanted, struct taken *taken);

/* Make the first `count` of taken clusters zeros with space in the file, unless they are that already. Clusters of a
   device, or of a file system that reserves no space, and punched ones are not. Tables and blocks need it: a flush
   writes them, and one that fails for want of space fails all later ones. Releases the lock for a while. */
int space_zero(struct qcow2 *q, struct op *op, const struct taken *taken, uint64_t count);

/* Return whether clusters that read as zeros can be taken without a system call. Otherwise WANT_ZEROS may take other
   clusters, or grow the file. One cluster more may become a block of reference counts. */
bool space_has_zeros(const struct qcow2 *q);

/* Give back clusters to which no entry has ever referred. Pass `written` if they may have been written to. */
void space_give_back(struct qcow2 *q, struct op *op, const struct taken *taken, bool written);

/* Free clusters whose count is 0 and that no operation uses. */
void space_free(struct qcow2 *q, uint64_t first, uint64_t count, bool zeros);

/* Return the most clusters that a table of reference counts may have. Each range of the file begins with its block, so
   there is no longer row of free clusters. */
static inline uint64_t space_longest_table(const struct qcow2 *q) {
    return min_u64((UINT64_C(1) << q->count_bits) - 1, MAX_REFCOUNT_TABLE_BYTES >> q->cluster_bits);
}

/* Move the table of reference counts to a longer place in the file if it has too many entries for its place. */
int space_move_table(struct qcow2 *q, struct op *op);

/* ---- refs.c ----------------------------------------------------------------------------------------------------- */

/*
 * Reference counts of the clusters of the file (refs.c): tables, blocks, numbers of 1 to 64 bits. The image's lock is
 * held; functions with an operation may release it for a while.
 */

/* Get or set a number of 2^order bits in a block or a part of one. If a number has less than 8 bits, the first one is
   in the lowest bits of a byte. */
uint64_t refs_number(const uint8_t *data, uint64_t index, uint32_t order);
void refs_put_number(uint8_t *data, uint64_t index, uint32_t order, uint64_t value);

static inline uint64_t refs_block(const struct qcow2 *q, uint64_t index) {
    return index < q->refcount_blocks ? be64toh(q->refcount_table[index]) : 0;
}

/* Return whether there is a block for a cluster. */
static inline bool refs_has_block(const struct qcow2 *q, uint64_t cluster) {
    return refs_block(q, cluster >> q->count_bits);
}

/* Make a cluster of zeros a block of reference counts, for the range that it is in, with a count of 1 for itself.
   Returns -EEXIST if there is a block by now. */
int refs_add_block(struct qcow2 *q, struct op *op, uint64_t cluster);

/* Set the counts of clusters to which nothing refers, or nothing does any more. Their blocks exist. */
int refs_set(struct qcow2 *q, struct op *op, uint64_t first, uint64_t count, uint64_t value);

/* Remove one reference, and store in *left how many are left. Returns -EIO if there was none. */
int refs_drop(struct qcow2 *q, struct op *op, uint64_t cluster, uint64_t *left);

/* ---- sets of clusters ------------------------------------------------------------------------------------------- */

/* Sets of numbers from 0 on, a bit for each. A number beyond the room is not in the set. */

/* Make room for the numbers below `room`. -ENOMEM. */
static inline int bits_reserve(struct bits *bits, uint64_t room) {
    uint64_t words = room / 64 + 1, had = bits->room / 64;
    if (words <= had)
        return 0;
    words = max_u64(words, had + had / 2);
    uint64_t *all = realloc(bits->words, words * sizeof(*all));
    if (!all)
        return -ENOMEM;
    memset(all + had, 0, (words - had) * sizeof(*all));
    bits->words = all;
    bits->room = words * 64;
    return 0;
}

static inline bool bits_test(const struct bits *bits, uint64_t number) {
    return number < bits->room && bits->words[number / 64] >> number % 64 & 1;
}

/* Return whether this has changed something. */
static inline bool bits_set(struct bits *bits, uint64_t number) {
    uint64_t bit = UINT64_C(1) << number % 64, word = bits->words[number / 64];
    bits->words[number / 64] = word | bit;
    return !(word & bit);
}

static inline bool bits_clear(struct bits *bits, uint64_t number) {
    bool was = bits_test(bits, number);
    if (was)
        bits->words[number / 64] &= ~(UINT64_C(1) << number % 64);
    return was;
}

static inline void bits_free(struct bits *bits) {
    free(bits->words);
    *bits = (struct bits){0};
}

#endif
