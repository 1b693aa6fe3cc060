/* SPDX-License-Identifier: Apache-2.0 */

/* TARGET FILE...: run a target on what files hold, without a fuzzer, as any compiler can build it. */

#include "fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void replay(const char *path) {
    struct bytes content = {0};
    char piece[4096];
    size_t count;
    FILE *file = fopen(path, "r");
    fprintf(stderr, "%s\n", path); /* the last one is what it aborts at */
    CHECK(file);
    while ((count = fread(piece, 1, sizeof(piece), file)))
        bytes_add(&content, piece, count);
    CHECK(!ferror(file) && fclose(file) == 0);
    LLVMFuzzerTestOneInput((const uint8_t *)content.data, content.length);
    bytes_free(&content);
}

int main(int argc, char **argv) {
    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++)
        replay(argv[i]);
    printf("%d inputs\n", argc - 1);
    return 0;
}
