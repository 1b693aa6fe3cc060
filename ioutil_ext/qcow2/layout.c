/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>

#include "base/numbers.h"
#include "qcow2/layout.h"
#include "qcow2/space.h"

int layout_begin(struct layout *layout, uint64_t size, uint32_t cluster_bits, bool extended) {
    bool valid = cluster_bits >= (extended ? MIN_EXTENDED_BITS : MIN_CLUSTER_BITS) && cluster_bits <= MAX_CLUSTER_BITS;
    if (!valid || size > INT64_MAX - (UINT64_C(1) << MAX_CLUSTER_BITS))
        return -EINVAL;
    uint64_t cluster = UINT64_C(1) << cluster_bits;
    *layout = (struct layout){.cluster_bits = cluster_bits, .extended = extended, .cluster = cluster};
    layout->size = round_up(size, SECTOR);
    layout->l1_entries = max_u64(1, divide_up(divide_up(layout->size, cluster), cluster >> (extended ? 4 : 3)));
    if (layout->l1_entries * 8 > MAX_L1_BYTES)
        return -EFBIG;
    layout->l1 = max_u64(1, divide_up(layout->l1_entries * 8, cluster));
    return 0;
}

/* The blocks count themselves and the table, which grow with them. */
void layout_place(struct layout *layout, uint64_t l2, uint64_t data) {
    uint64_t before;
    layout->l2 = l2;
    layout->data = data;
    layout->table = layout->blocks = 1;
    do {
        before = layout->clusters;
        layout->clusters = 1 + layout->table + layout->blocks + layout->l1 + l2 + data;
        layout->blocks = divide_up(layout->clusters << REFCOUNT_ORDER, 8 * layout->cluster);
        layout->table = divide_up(8 * layout->blocks, layout->cluster);
    } while (before != layout->clusters);
}

void layout_fill_header(const struct layout *layout, uint8_t *header) {
    put32(header, QCOW2_MAGIC);
    put32(header + 4, 3);
    put32(header + 20, layout->cluster_bits);
    put64(header + 24, layout->size);
    put32(header + 36, (uint32_t)layout->l1_entries);
    put64(header + 40, layout_l1(layout));
    put64(header + 48, layout->cluster);
    put32(header + 56, (uint32_t)layout->table);
    put64(header + 72, layout->extended ? INCOMPAT_EXTENDED : 0);
    put32(header + 96, REFCOUNT_ORDER);
    put32(header + 100, HEADER_LENGTH);
}

void layout_fill_counts(const struct layout *layout, uint64_t sector, uint8_t *data) {
    uint64_t at = sector * SECTOR, table = layout->cluster, blocks = (1 + layout->table) << layout->cluster_bits;
    if (at >= table && at < blocks) {
        uint64_t first = (at - table) / 8, end = min_u64(first + SECTOR / 8, layout->blocks);
        for (uint64_t i = first; i < end; i++)
            put64(data + 8 * (i - first), blocks + (i << layout->cluster_bits));
    } else if (at >= blocks && at < layout_l1(layout)) {
        uint64_t per_sector = (8 * SECTOR) >> REFCOUNT_ORDER, first = (at - blocks) / SECTOR * per_sector;
        uint64_t end = min_u64(first + per_sector, layout->clusters);
        for (uint64_t i = first; i < end; i++)
            refs_put_number(data, i - first, REFCOUNT_ORDER, 1);
    }
}
