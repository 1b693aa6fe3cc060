/* SPDX-License-Identifier: Apache-2.0 */

/* What a guest reads, of all files of a chain (chain.c). No lock is held. */

#ifndef IOUTIL_QCOW2_CHAIN_H
#define IOUTIL_QCOW2_CHAIN_H

#include "qcow2/map.h"

/* A run of one kind. KIND_UNALLOCATED: no file has it, and it reads as zeros. */
struct run {
    struct mapping mapping;
    const struct level *level; /* of data */
    uint64_t pos;
    unsigned phase; /* of grace_enter() */
};

/*
 * Find what is at pos, from one level on, and how far it goes. Until chain_leave() nobody is given its clusters. The
 * levels below the first one are read only.
 */
int chain_find(struct chain *chain, struct op *op, uint32_t first, uint64_t pos, uint64_t length, struct run *run);
void chain_leave(struct chain *chain, const struct run *run);

/* Read a range, from one level on. */
int chain_read(struct chain *chain, struct op *op, uint32_t first, void *to, uint64_t pos, uint64_t length);

/* Whether a range reads as zeros from one level on, as far as tables say. */
int chain_is_zero(struct chain *chain, struct op *op, uint32_t first, uint64_t pos, uint64_t length, bool *zero);

/* Read what a run has, from its beginning on. */
int chain_read_run(struct op *op, const struct run *run, void *to);

#endif
