/* SPDX-License-Identifier: Apache-2.0 */

/* What libFuzzer calls, and replay.c in its place. */

#include "fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct target *const TARGETS[] = {&http_head_target, &http_chunks_target, &http_patch_target,
                                               &nbd_wire_target,  &http_lane_target,   &http_instruction_target,
                                               &nbd_lane_target,  &nbd_client_target,  &tls_target,
                                               &zstd_target,      &qcow2_target};

static const struct target *target;

static const struct target *find(const char *name) {
    for (size_t i = 0; i < sizeof(TARGETS) / sizeof(*TARGETS); i++)
        if (strcmp(TARGETS[i]->name, name) == 0)
            return TARGETS[i];
    fprintf(stderr, "%s: no target has this name\n", name);
    exit(2);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *slash = strrchr((*argv)[0], '/');
    (void)argc;
    target = find(slash ? slash + 1 : (*argv)[0]);
    if (target->begin)
        target->begin();
    return 0;
}

/* A copy of exactly this size, so that a byte beyond it is seen. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *copy = malloc(size);
    CHECK(copy || size == 0);
    if (size)
        memcpy(copy, data, size);
    target->run(copy, size);
    free(copy);
    return 0;
}
