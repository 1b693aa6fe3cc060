/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Makes an empty image in the format qcow2: header | table of reference counts | their blocks | L1 table, each cluster
 * counted once.
 */

#include <fcntl.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/format.h"
#include "qcow2/refs.h"
#include "stress.h"

enum { HEADER_LENGTH = 112, REFCOUNT_ORDER = 4 };

struct layout {
    uint64_t size, cluster, l1_entries;
    uint64_t table, blocks, l1, clusters; /* how many; clusters: of all */
};

static uint64_t divide_up(uint64_t value, uint64_t by) {
    return (value + by - 1) / by;
}

/* The blocks count themselves and the table, which grow with them. */
static struct layout lay_out(uint64_t size, uint64_t cluster) {
    struct layout layout = {.size = size, .cluster = cluster, .table = 1, .blocks = 1};
    layout.l1_entries = max_u64(1, divide_up(divide_up(size, cluster), cluster / 8));
    layout.l1 = max_u64(1, divide_up(layout.l1_entries * 8, cluster));
    uint64_t before;
    do {
        before = layout.clusters;
        layout.clusters = 1 + layout.table + layout.blocks + layout.l1;
        layout.blocks = divide_up(layout.clusters << REFCOUNT_ORDER, 8 * cluster);
        layout.table = divide_up(8 * layout.blocks, cluster);
    } while (before != layout.clusters);
    return layout;
}

static void fill_header(uint8_t *header, const struct layout *layout, uint32_t cluster_bits) {
    put32(header, QCOW2_MAGIC);
    put32(header + 4, 3);
    put32(header + 20, cluster_bits);
    put64(header + 24, layout->size);
    put32(header + 36, (uint32_t)layout->l1_entries);
    put64(header + 40, (1 + layout->table + layout->blocks) * layout->cluster);
    put64(header + 48, layout->cluster);
    put32(header + 56, (uint32_t)layout->table);
    put32(header + 96, REFCOUNT_ORDER);
    put32(header + 100, HEADER_LENGTH);
}

static void fill_tables(uint8_t *tables, const struct layout *layout) {
    for (uint64_t i = 0; i < layout->blocks; i++)
        put64(tables + 8 * i, (1 + layout->table + i) * layout->cluster);
    for (uint64_t i = 0; i < layout->clusters; i++)
        refs_put_number(tables + layout->table * layout->cluster, i, REFCOUNT_ORDER, 1);
}

void make_qcow2(const char *path, uint64_t size, uint32_t cluster_bits) {
    struct layout layout = lay_out(size, UINT64_C(1) << cluster_bits);
    uint64_t length = (1 + layout.table + layout.blocks) * layout.cluster;
    uint8_t *content = calloc(1, length);
    CHECK(content);
    fill_header(content, &layout, cluster_bits);
    fill_tables(content + layout.cluster, &layout);
    make_file(path, layout.clusters * layout.cluster);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && pwrite(fd, content, length, 0) == (ssize_t)length);
    CHECK(close(fd) == 0);
    free(content);
}
