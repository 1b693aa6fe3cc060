/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The walk. After it, writers can trust the tables: a cluster with two owners does not have a count of one, no entry
 * leads into tables, and all later entries are our own. Tables have no loops: their depth is fixed.
 */

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"
#include "qcow2/open.h"
#include "qcow2/space.h"

/* Bytes of tables that are read: those of 2 TiB with clusters of 64 KiB, half a second from an SSD. */
#define MOST_TABLES (256 * MIB)

/* Clusters of the file: of 64 KiB, 4 TiB. Each takes 2 bytes for the time of the walk. */
#define MOST_CLUSTERS (UINT64_C(1) << 26)

/* Bytes of one row of the table of snapshots that are read, and the most bytes of its extra data. */
enum { SNAPSHOT_ROW = 40, MAX_SNAPSHOT_EXTRA = 1024 };

struct walk {
    struct qcow2 *q;
    struct op *op;
    iou_qcow2_verdict *verdict;
    uint64_t clusters; /* of the file */
    uint64_t read;     /* bytes of tables */
    uint16_t *counts;  /* references that were found; the largest number also stands for more */
    struct bits tables, copied;
    uint8_t *table; /* a cluster */
};

static int refuse_walk(struct walk *walk, const char *what, uint64_t offset) {
    return judge(walk->op, walk->verdict, IOU_QCOW2_REFUSE, "%s (%#llx)", what, (unsigned long long)offset);
}

static int read_walked(struct walk *walk, void *to, uint64_t offset, uint64_t length) {
    if (op_canceled(walk->op))
        return op_fail(walk->op, IOU_SYS_NONE, ECANCELED);
    walk->read += length;
    if (walk->read > MOST_TABLES)
        return judge(walk->op, walk->verdict, IOU_QCOW2_FALLBACK, "its tables are too large to be checked");
    return layer_read(walk->op, walk->q->file, to, offset, length);
}

/* ---- references ------------------------------------------------------------------------------------------------- */

static void count_cluster(struct walk *walk, uint64_t cluster) {
    if (walk->counts[cluster] < UINT16_MAX)
        walk->counts[cluster]++;
}

/* Count the clusters of a table, which nothing else may use. */
static int count_table(struct walk *walk, uint64_t offset, uint64_t length) {
    struct qcow2 *q = walk->q;
    uint64_t first = offset >> q->cluster_bits, end = divide_up(offset + length, q->cluster);
    if (!is_aligned(offset, q->cluster) || offset >= MAX_HOST || end > walk->clusters || (length && !offset))
        return refuse_walk(walk, "a table is not inside of the file", offset);
    for (uint64_t i = first; i < end; i++) {
        if (walk->counts[i])
            return refuse_walk(walk, "two tables overlap", i << q->cluster_bits);
        bits_set(&walk->tables, i);
        count_cluster(walk, i);
    }
    return 0;
}

static int count_data(struct walk *walk, uint64_t offset, uint64_t length) {
    uint32_t bits = walk->q->cluster_bits;
    for (uint64_t i = offset >> bits; i <= (offset + length - 1) >> bits; i++) {
        if (i >= walk->clusters)
            return refuse_walk(walk, "an entry leads past the end of the file", offset);
        if (i == 0 || bits_test(&walk->tables, i))
            return refuse_walk(walk, "an entry leads into a table", offset);
        count_cluster(walk, i);
    }
    return 0;
}

/* Count a cluster with data. Most entries name one, and a disk of 1 TiB has 16 million of them. */
static int count_plain(struct walk *walk, uint64_t entry, bool active) {
    uint64_t cluster = (entry & ENTRY_OFFSET) >> walk->q->cluster_bits;
    if (cluster == 0 || cluster >= walk->clusters || bits_test(&walk->tables, cluster))
        return refuse_walk(walk, "an entry leads into a table, or past the end of the file", entry & ENTRY_OFFSET);
    count_cluster(walk, cluster);
    if (active && entry & ENTRY_COPIED)
        bits_set(&walk->copied, cluster);
    return 0;
}

static int count_entry(struct walk *walk, uint64_t entry, bool active) {
    struct mapping mapping;
    struct qcow2 *q = walk->q;
    uint64_t offset;
    if (!entry)
        return 0;
    if (entry & ENTRY_OFFSET && !(entry & ~(ENTRY_COPIED | (ENTRY_OFFSET & ~(q->cluster - 1)))))
        return count_plain(walk, entry, active);
    if (map_entry(q, walk->op, entry, &mapping))
        return refuse_walk(walk, "an L2 entry cannot be right", entry & ENTRY_OFFSET);
    if (mapping.kind == KIND_COMPRESSED) {
        uint64_t length = map_compressed(q, entry, &offset);
        return count_data(walk, offset, length);
    }
    if (!mapping.host)
        return 0;
    if (active && entry & ENTRY_COPIED)
        bits_set(&walk->copied, mapping.host >> q->cluster_bits);
    return count_data(walk, mapping.host, q->cluster);
}

/* ---- L1 tables -------------------------------------------------------------------------------------------------- */

static int visit_table(struct walk *walk, uint64_t entry, bool active) {
    struct qcow2 *q = walk->q;
    uint64_t offset = entry & ENTRY_OFFSET, number = offset >> q->cluster_bits;
    if (!offset || entry & L1_RESERVED || !is_aligned(offset, q->cluster) || number >= walk->clusters)
        return refuse_walk(walk, "an L1 entry cannot be right", offset);
    if (walk->counts[number] && !bits_test(&walk->copied, number) && bits_test(&walk->tables, number))
        return refuse_walk(walk, "an L1 entry leads into a table", offset);
    bits_set(&walk->tables, number);
    bits_set(&walk->copied, number); /* for now: it is an L2 table */
    count_cluster(walk, number);
    (void)active;
    return 0;
}

static int visit_entries(struct walk *walk, uint64_t entry, bool active) {
    struct qcow2 *q = walk->q;
    int error = read_walked(walk, walk->table, entry & ENTRY_OFFSET, q->cluster);
    for (uint64_t i = 0; !error && i < q->cluster; i += UINT64_C(1) << q->entry_bits)
        error = count_entry(walk, get64(walk->table + i), active);
    return error;
}

static int visit_l1(struct walk *walk, const uint64_t *l1, uint64_t entries, bool active,
                    int (*visit)(struct walk *walk, uint64_t entry, bool active)) {
    int error = 0;
    for (uint64_t i = 0; !error && i < entries; i++)
        if (l1[i])
            error = visit(walk, be64toh(l1[i]), active);
    return error;
}

/* ---- snapshots -------------------------------------------------------------------------------------------------- */

static int visit_snapshot_l1(struct walk *walk, uint64_t offset, uint64_t entries, bool first,
                             int (*visit)(struct walk *walk, uint64_t entry, bool active)) {
    if (entries * 8 > MAX_L1_BYTES)
        return refuse_walk(walk, "a snapshot has too long a table", offset);
    int error = first ? count_table(walk, offset, entries * 8) : 0;
    uint64_t *l1 = error ? NULL : malloc(entries * 8 + 1);
    if (!error && !l1)
        error = op_fail(walk->op, IOU_SYS_MALLOC, ENOMEM);
    if (!error)
        error = read_walked(walk, l1, offset, entries * 8);
    if (!error)
        error = visit_l1(walk, l1, entries, false, visit);
    free(l1);
    return error;
}

/* Visit the L1 tables of all snapshots. first: count the clusters of these, and those of the table of snapshots. */
static int visit_snapshots(struct walk *walk, bool first,
                           int (*visit)(struct walk *walk, uint64_t entry, bool active)) {
    uint64_t start = walk->q->header.snapshots_offset, at = start;
    uint8_t row[SNAPSHOT_ROW];
    int error = 0;
    for (uint32_t i = 0; !error && i < walk->q->header.snapshots; i++) {
        error = read_walked(walk, row, at, sizeof(row));
        uint32_t extra = get32(row + 36);
        if (!error && extra > MAX_SNAPSHOT_EXTRA)
            error = refuse_walk(walk, "a snapshot cannot be right", at);
        if (!error)
            error = visit_snapshot_l1(walk, get64(row), get32(row + 8), first, visit);
        at = round_up(at + SNAPSHOT_ROW + extra + get16(row + 12) + get16(row + 14), 8);
    }
    return error || !first || at == start ? error : count_table(walk, start, at - start);
}

/* ---- reference counts ------------------------------------------------------------------------------------------- */

static int compare_cluster(struct walk *walk, uint64_t cluster, uint64_t value) {
    struct qcow2 *q = walk->q;
    uint64_t seen = walk->counts[cluster], offset = cluster << q->cluster_bits;
    if (value < seen)
        return refuse_walk(walk, value ? "more uses a cluster than is counted" : "a cluster in use is not counted",
                           offset);
    if (value > 1 && bits_test(&walk->copied, cluster))
        return refuse_walk(walk, "a cluster that others use is marked as used once", offset);
    q->counts.leaked += value > seen && seen < UINT16_MAX;
    if (value) {
        bits_set(&q->space.used, cluster);
        q->space.tail = cluster + 1;
    }
    return 0;
}

static int compare_block(struct walk *walk, uint64_t index) {
    struct qcow2 *q = walk->q;
    uint64_t offset = refs_block(q, index), first = index << q->count_bits, many = UINT64_C(1) << q->count_bits;
    int error = offset ? read_walked(walk, walk->table, offset, q->cluster) : 0;
    for (uint64_t i = 0; !error && i < many && first + i < walk->clusters; i++)
        error = compare_cluster(walk, first + i, offset ? refs_number(walk->table, i, q->header.refcount_order) : 0);
    return error;
}

static int count_blocks(struct walk *walk) {
    struct qcow2 *q = walk->q;
    int error = 0;
    for (uint64_t i = 0; !error && i < q->refcount_blocks; i++) {
        uint64_t entry = be64toh(q->refcount_table[i]);
        if (entry & REFCOUNT_TABLE_RESERVED)
            error = refuse_walk(walk, "an entry of the table of reference counts cannot be right", entry);
        else if (entry)
            error = count_table(walk, entry, q->cluster);
    }
    return error;
}

/* ---- free clusters ---------------------------------------------------------------------------------------------- */

/* Most runs of free clusters that are searched for holes: each takes a system call. */
#define MOST_LOOKS 65536u

static void note_hole(struct qcow2 *q, uint64_t start, uint64_t end) {
    for (uint64_t i = divide_up(start, q->cluster); i < end >> q->cluster_bits; i++)
        q->space.recycled_zeros += bits_set(&q->space.zeros, i);
}

/* Find the free clusters that are holes of the file. They read as zeros, also after a loss of power: before a flush
   makes an entry for one durable, it makes the file's holes durable. */
static int find_holes(struct walk *walk, uint64_t first, uint64_t end, uint32_t *looks) {
    struct qcow2 *q = walk->q;
    uint64_t stop, last = end << q->cluster_bits;
    int error = 0;
    for (uint64_t at = first << q->cluster_bits; !error && at < last && ++*looks < MOST_LOOKS; at = stop) {
        bool hole = false;
        if (op_canceled(walk->op))
            return op_fail(walk->op, IOU_SYS_NONE, ECANCELED);
        error = layer_extent(walk->op, q->file, at, last, &stop, &hole);
        if (!error && hole)
            note_hole(q, at, stop);
    }
    return error;
}

static int learn_free(struct walk *walk) {
    struct space *space = &walk->q->space;
    uint32_t looks = walk->q->file->image->type == IOU_FILE ? 0 : MOST_LOOKS;
    int error = 0;
    for (uint64_t i = 0, first; !error && i < space->tail; i++) {
        for (first = i; i < space->tail && !bits_test(&space->used, i);)
            i++;
        space->recycled += i - first;
        if (i > first)
            error = find_holes(walk, first, i, &looks);
    }
    return error;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

/* Whether the table of reference counts has room for clusters for all of the disk, while as many old ones are not free
   again yet. With very small clusters and wide counts, the row for this table is short; qemu makes longer ones. */
static bool has_counts_for_all(const struct walk *walk) {
    const struct qcow2 *q = walk->q;
    uint64_t most = ((UINT64_C(1) << q->count_bits) - 1) << (q->cluster_bits - 3);
    return (walk->clusters + 2 * divide_up(q->header.size, q->cluster)) >> q->count_bits < most;
}

/* Note for an L1 entry whether its table is marked as used once. (Before, these bits were those of L2 tables.) A table
   that is used once and not marked would be copied, and then freed while it is read. */
static int mark_copied(struct walk *walk, uint64_t entry, bool active) {
    uint64_t number = (entry & ENTRY_OFFSET) >> walk->q->cluster_bits;
    if (active && entry & ENTRY_COPIED)
        bits_set(&walk->copied, number);
    else if (walk->counts[number] == 1)
        return judge(walk->op, walk->verdict, IOU_QCOW2_FALLBACK, "its tables have to be repaired first");
    return 0;
}

static int count_tables(struct walk *walk) {
    struct qcow2 *q = walk->q;
    count_cluster(walk, 0);
    bits_set(&walk->tables, 0);
    int error = count_table(walk, q->header.l1_offset, 8 * (uint64_t)q->header.l1_size);
    if (!error)
        error = count_table(walk, q->table_offset, q->table_clusters << q->cluster_bits);
    if (!error)
        error = count_blocks(walk);
    if (!error)
        error = visit_snapshots(walk, true, visit_table);
    return error ? error : visit_l1(walk, q->l1, q->header.l1_size, true, visit_table);
}

static int count_all(struct walk *walk) {
    struct qcow2 *q = walk->q;
    int error = count_tables(walk);
    if (error)
        return error;
    memset(walk->copied.words, 0, walk->copied.room / 8);
    error = visit_l1(walk, q->l1, q->header.l1_size, true, mark_copied);
    if (!error)
        error = visit_l1(walk, q->l1, q->header.l1_size, true, visit_entries);
    if (!error)
        error = visit_snapshots(walk, false, visit_entries);
    uint64_t blocks = divide_up(walk->clusters, UINT64_C(1) << q->count_bits);
    for (uint64_t i = 0; !error && i < blocks; i++)
        error = compare_block(walk, i);
    return error;
}

int walk_run(struct qcow2 *q, struct op *op, iou_qcow2_verdict *verdict) {
    struct walk walk = {.q = q, .op = op, .verdict = verdict};
    walk.clusters = divide_up(layer_size(q->file), q->cluster);
    if (walk.clusters > MOST_CLUSTERS)
        return judge(op, verdict, IOU_QCOW2_FALLBACK, "its file has too many clusters to be checked");
    if (!has_counts_for_all(&walk))
        return judge(op, verdict, IOU_QCOW2_FALLBACK, "its reference counts may not suffice for all of the disk");
    walk.counts = calloc(walk.clusters, sizeof(*walk.counts));
    bool memory = walk.counts && posix_memalign((void **)&walk.table, PAGE_UNIT, max_u64(q->cluster, PAGE_UNIT)) == 0;
    memory = memory && !bits_reserve(&walk.tables, walk.clusters) && !bits_reserve(&walk.copied, walk.clusters);
    memory = memory && !bits_reserve(&q->space.used, walk.clusters) && !bits_reserve(&q->space.zeros, walk.clusters);
    int error = memory ? count_all(&walk) : op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    q->space.end = layer_size(q->file) >> q->cluster_bits;
    if (!error)
        error = learn_free(&walk);
    free(walk.counts);
    free(walk.table);
    bits_free(&walk.tables);
    bits_free(&walk.copied);
    return error;
}
