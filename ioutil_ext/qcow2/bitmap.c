/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Bitmaps: a directory names them, each has a table, and each entry of it is for a cluster of bits: all clear, all set,
 * or their place in the file. Unknown ranges are never reported as unchanged: a bitmap that may lack changes is not
 * used.
 */

#include <errno.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "qcow2/chain.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"
#include "qcow2/open.h"

/* Bytes of the directory that are read at a time: a row has at most 1056. */
enum { WINDOW = 65536, MOST_OF_ROW = BITMAP_ROW + MAX_BITMAP_NAME };

/* Where a search is in the directory. */
struct directory {
    uint64_t at, end; /* in the file: the next row, the end of all */
    uint64_t start;   /* of the bytes in memory */
    uint64_t length;
    uint8_t *window;
};

static int refuse_bitmap(struct op *op, iou_qcow2_verdict *verdict, const char *what) {
    return judge(op, verdict, IOU_QCOW2_REFUSE, "%s of its bitmaps cannot be right", what);
}

/* ---- the directory ---------------------------------------------------------------------------------------------- */

/* Whether bytes lie inside of the file, behind the first cluster. */
static bool is_inside_bitmap(const struct qcow2 *q, uint64_t offset, uint64_t bytes) {
    return offset >= q->cluster && is_aligned(offset, q->cluster) && lies_in(offset, bytes, layer_size(q->file));
}

/* Make sure that a whole row is in memory, as far as the directory goes. */
static int look_up_row(struct op *op, struct qcow2 *q, struct directory *directory) {
    uint64_t left = directory->end - directory->at;
    if (directory->length && directory->at + min_u64(left, MOST_OF_ROW) <= directory->start + directory->length)
        return 0;
    directory->start = directory->at;
    directory->length = min_u64(left, WINDOW);
    return layer_read(op, q->file, directory->window, directory->start, directory->length);
}

/* Check a row: its head, and the length of the name that follows. A row with extra data is left to qemu. */
static int check_row(struct op *op, const struct directory *directory, const uint8_t *row, uint64_t *length,
                     iou_qcow2_verdict *verdict) {
    uint64_t left = directory->end - directory->at;
    if (left < BITMAP_ROW)
        return refuse_bitmap(op, verdict, "the directory");
    *length = get16(row + 18);
    if (!*length || *length > MAX_BITMAP_NAME || *length > left - BITMAP_ROW)
        return refuse_bitmap(op, verdict, "a name");
    return get32(row + 20) ? judge(op, verdict, IOU_QCOW2_FALLBACK, "a bitmap of it has data of an unknown kind") : 0;
}

/* Find the row of a name. *found: NULL if there is none. */
static int find_row(struct op *op, struct qcow2 *q, struct directory *directory, const char *name,
                    const uint8_t **found, iou_qcow2_verdict *verdict) {
    uint64_t length = 0;
    *found = NULL;
    for (uint32_t i = 0; !*found && i < q->header.bitmaps; i++) {
        int error = look_up_row(op, q, directory);
        const uint8_t *row = directory->window + (directory->at - directory->start);
        if (!error)
            error = check_row(op, directory, row, &length, verdict);
        if (error)
            return error;
        if (length == strlen(name) && memcmp(row + BITMAP_ROW, name, length) == 0)
            *found = row;
        directory->at += min_u64(round_up(BITMAP_ROW + length, 8), directory->end - directory->at);
    }
    return 0;
}

/* ---- a bitmap --------------------------------------------------------------------------------------------------- */

/* Entries of the table that the disk needs. */
static uint64_t entries_for(const struct qcow2 *q, uint32_t bits) {
    return divide_up(divide_up(q->header.size, UINT64_C(1) << bits), 8 * q->cluster);
}

static int read_bitmap(struct op *op, struct qcow2 *q, const uint8_t *row, iou_qcow2_verdict *verdict) {
    uint64_t offset = get64(row), entries = get32(row + 8);
    uint32_t flags = get32(row + 12), bits = row[17];
    if (flags & BITMAP_IN_USE) {
        verdict->bitmap = IOU_QCOW2_BITMAP_IN_USE;
        return 0;
    }
    if (flags & BITMAP_FLAGS_RESERVED || row[16] != BITMAP_DIRTY_TRACKING || bits < MIN_GRANULARITY_BITS ||
        bits > MAX_GRANULARITY_BITS)
        return refuse_bitmap(op, verdict, "the kind of one");
    uint64_t needed = entries_for(q, bits);
    if (entries > MAX_BITMAP_BYTES >> q->cluster_bits || needed > entries || !is_inside_bitmap(q, offset, 8 * entries))
        return refuse_bitmap(op, verdict, "a table");
    q->bitmap.bits = bits;
    q->bitmap.table = malloc(8 * (needed + 1));
    if (!q->bitmap.table)
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    verdict->bitmap = IOU_QCOW2_BITMAP_TOLD;
    return layer_read(op, q->file, q->bitmap.table, offset, 8 * needed);
}

int bitmap_open(struct op *op, struct qcow2 *q, const char *name, iou_qcow2_verdict *verdict) {
    const struct header *header = &q->header;
    verdict->bitmap = IOU_QCOW2_BITMAP_MISSING;
    if (!header->has_bitmaps || !(header->autoclear & AUTOCLEAR_BITMAPS))
        return 0;
    if (header->bitmaps > MAX_BITMAPS || header->directory_bytes > MAX_DIRECTORY_BYTES ||
        !is_inside_bitmap(q, header->directory_offset, header->directory_bytes))
        return refuse_bitmap(op, verdict, "the directory");
    struct directory directory = {
        .at = header->directory_offset,
        .end = header->directory_offset + header->directory_bytes,
        .window = malloc(WINDOW),
    };
    if (!directory.window)
        return op_fail(op, IOU_SYS_MALLOC, ENOMEM);
    const uint8_t *row;
    int error = find_row(op, q, &directory, name, &row, verdict);
    if (!error && row)
        error = read_bitmap(op, q, row, verdict);
    free(directory.window);
    return error;
}

/* ---- bits ------------------------------------------------------------------------------------------------------- */

/* Return the number of the first bit from `bit` on that differs from `set`, or `end`, which is the end of a word. */
static uint64_t bits_end(const uint8_t *data, uint64_t bit, uint64_t end, bool set) {
    uint64_t same = set ? UINT64_MAX : 0, word;
    for (; bit < end; bit = round_down(bit, 64) + 64) {
        memcpy(&word, data + bit / 64 * sizeof(word), sizeof(word));
        uint64_t others = (le64toh(word) ^ same) >> bit % 64;
        if (others)
            return bit + (uint64_t)__builtin_ctzll(others);
    }
    return end;
}

/* The runs of bits in a slice of the file. */
static int find_in_slice(struct qcow2 *q, struct op *op, uint64_t host, uint64_t bit, struct changes *changes) {
    uint32_t slice_bits = q->slice_bits + 3;
    uint64_t size = UINT64_C(1) << slice_bits, first = round_down(bit, size);
    struct slice *slice;
    host += (first / 8) & (q->cluster - 1);
    int error = cache_get(q, op, KEY_BITMAP | bit >> slice_bits, host, &slice);
    if (error)
        return error;
    uint64_t at = bit - first;
    bool dirty = changes->dirty = slice->data[at / 8] >> at % 8 & 1;
    for (changes->count = 0; at < size && changes->count < CHANGES; dirty = !dirty) {
        at = bits_end(slice->data, at, size, dirty);
        changes->ends[changes->count++] = first + at;
    }
    cache_put(slice);
    return 0;
}

int bitmap_find(struct qcow2 *q, struct op *op, uint64_t pos, uint64_t end, struct changes *changes) {
    uint32_t bits = q->bitmap.bits, entry_bits = q->cluster_bits + 3;
    uint64_t bit = pos >> bits, entry = be64toh(q->bitmap.table[bit >> entry_bits]), host = entry & ENTRY_OFFSET;
    int error = 0;
    if (entry & BITMAP_RESERVED || (host && (entry & BITMAP_ALL_ONES || !is_inside_bitmap(q, host, 1))))
        return map_corrupt(q, op);
    *changes = (struct changes){.dirty = entry & BITMAP_ALL_ONES, .count = 1};
    changes->ends[0] = ((bit >> entry_bits) + 1) << entry_bits;
    if (host)
        error = find_in_slice(q, op, host, bit, changes);
    for (uint32_t i = 0; i < changes->count; i++)
        changes->ends[i] = changes->ends[i] < (end >> bits) + 1 ? min_u64(changes->ends[i] << bits, end) : end;
    return error;
}
