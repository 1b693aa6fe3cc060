/* SPDX-License-Identifier: Apache-2.0 */

/* The pool of memory of lanes, for tests of who gets what; test_quota.py calls this. */

#include <stdlib.h>

#include "quota/pool.h"

static bool is_never_cut(const struct memory_user *user) {
    (void)user;
    return false;
}

struct memory_pool *quota_pool(uint64_t memory) {
    struct memory_pool *pool = malloc(sizeof(*pool));
    pool_init(pool, memory);
    return pool;
}

void quota_end(struct memory_pool *pool) {
    pool_destroy(pool);
    free(pool);
}

/* A user with a ticket of its own. */
struct memory_user *quota_join(struct memory_pool *pool, uint64_t device) {
    struct memory_user *user = calloc(1, sizeof(*user));
    user->cuts = is_never_cut;
    pool_join(pool, user, (const iou_lease *)user, device);
    return user;
}

void quota_leave(struct memory_user *user) {
    pool_leave(user);
    free(user);
}

/* NULL: there is none now. */
struct memory *quota_ask(struct memory_user *user, size_t size) {
    struct claimant claimant = {.user = user, .size = size};
    return memory_ask(&claimant) ? NULL : claimant.memory;
}
