/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "qcow2/plan.h"

#define WORD 64u

/* ---- the data of the disk --------------------------------------------------------------------------------------- */

/* Words of the bits of an L2 table. */
static uint64_t words_of_table(const struct plan *plan) {
    return plan->layout.cluster / 8 / WORD;
}

int plan_begin(struct plan *plan, uint64_t size, uint32_t cluster_bits) {
    *plan = (struct plan){0};
    int error = layout_begin(&plan->layout, size, cluster_bits, false);
    if (error)
        return error;
    uint64_t clusters = divide_up(plan->layout.size, plan->layout.cluster);
    if (clusters > IOU_PACKED_CLUSTERS)
        return -EFBIG;
    plan->size = size;
    plan->words = plan->layout.l1_entries * words_of_table(plan);
    plan->bits = calloc(plan->words, sizeof(*plan->bits));
    return plan->bits ? 0 : -ENOMEM;
}

void plan_free(struct plan *plan) {
    free(plan->bits);
    free(plan->tables);
}

static void set_bits(uint64_t *bits, uint64_t first, uint64_t end) {
    while (first < end) {
        uint64_t shift = first % WORD, count = min_u64(WORD - shift, end - first);
        bits[first / WORD] |= (UINT64_MAX >> (WORD - count)) << shift;
        first += count;
    }
}

int plan_tell(struct plan *plan, uint64_t end, bool data) {
    uint64_t start = plan->told;
    if (plan->tables || end <= start || end > plan->size)
        return -EINVAL;
    if (data)
        set_bits(plan->bits, start >> plan->layout.cluster_bits, divide_up(end, plan->layout.cluster));
    plan->told = end;
    return 0;
}

static uint64_t count_bits(const uint64_t *words, uint64_t count) {
    uint64_t found = 0;
    for (uint64_t i = 0; i < count; i++)
        found += (uint64_t)__builtin_popcountll(words[i]);
    return found;
}

int plan_place(struct plan *plan) {
    uint64_t per_table = words_of_table(plan), count = 0, data = 0;
    if (plan->tables)
        return -EINVAL;
    if (plan->told < plan->size)
        return -ENODATA;
    for (uint64_t i = 0; i < plan->layout.l1_entries; i++)
        count += count_bits(plan->bits + i * per_table, per_table) > 0;
    plan->tables = calloc(count + 1, sizeof(*plan->tables));
    if (!plan->tables)
        return -ENOMEM;
    struct planned_table *next = plan->tables;
    for (uint64_t i = 0; i < plan->layout.l1_entries; i++) {
        uint64_t found = count_bits(plan->bits + i * per_table, per_table);
        if (found)
            *next++ = (struct planned_table){.number = i, .before = data};
        data += found;
    }
    *next = (struct planned_table){.number = UINT64_MAX, .before = data};
    layout_place(&plan->layout, count, data);
    return 0;
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

/* Find the first table whose number or whose place in the data is past a value. */
static uint64_t first_past(const struct plan *plan, uint64_t value, bool in_data) {
    uint64_t low = 0, high = plan->layout.l2;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        const struct planned_table *table = &plan->tables[middle];
        if ((in_data ? table->before : table->number) > value)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void fill_l1(const struct plan *plan, uint64_t first, uint8_t *data) {
    const struct layout *layout = &plan->layout;
    uint64_t next = first ? first_past(plan, first - 1, false) : 0;
    for (; next < layout->l2 && plan->tables[next].number < first + SECTOR / 8; next++)
        put64(data + 8 * (plan->tables[next].number - first),
              (layout_l2(layout) + (next << layout->cluster_bits)) | ENTRY_COPIED);
}

/* The entries of a sector are those of one word. */
static void fill_l2(const struct plan *plan, uint64_t offset, uint8_t *data) {
    const struct layout *layout = &plan->layout;
    const struct planned_table *table = &plan->tables[offset >> layout->cluster_bits];
    const uint64_t *words = plan->bits + table->number * words_of_table(plan);
    uint64_t word = offset % layout->cluster / SECTOR, before = table->before + count_bits(words, word);
    for (uint64_t left = words[word]; left; left &= left - 1, before++)
        put64(data + 8 * __builtin_ctzll(left),
              (layout_data(layout) + (before << layout->cluster_bits)) | ENTRY_COPIED);
}

static void fill_sector(const struct plan *plan, uint64_t sector, uint8_t *data) {
    const struct layout *layout = &plan->layout;
    uint64_t at = sector * SECTOR;
    memset(data, 0, SECTOR);
    if (sector == 0)
        layout_fill_header(layout, data);
    else if (at < layout_l1(layout))
        layout_fill_counts(layout, sector, data);
    else if (at < layout_l2(layout))
        fill_l1(plan, (at - layout_l1(layout)) / 8, data);
    else
        fill_l2(plan, at - layout_l2(layout), data);
}

void plan_fill(const struct plan *plan, uint64_t offset, uint64_t length, char *memory) {
    uint8_t data[SECTOR];
    for (uint64_t done = 0; done < length;) {
        uint64_t skip = (offset + done) % SECTOR, count = min_u64(SECTOR - skip, length - done);
        fill_sector(plan, (offset + done) / SECTOR, data);
        memcpy(memory + done, data + skip, count);
        done += count;
    }
}

/* ---- data ------------------------------------------------------------------------------------------------------- */

/* Find the set bit of a table that has `before` set bits before it. */
static uint64_t select_bit(const uint64_t *words, uint64_t before) {
    uint64_t word = 0, count;
    for (; (count = (uint64_t)__builtin_popcountll(words[word])) <= before; word++)
        before -= count;
    uint64_t left = words[word];
    for (; before; before--)
        left &= left - 1;
    return word * WORD + (uint64_t)__builtin_ctzll(left);
}

/* Count consecutive set bits, up to `most`. */
static uint64_t count_run(const uint64_t *bits, uint64_t first, uint64_t most) {
    uint64_t count = 0;
    while (count < most) {
        uint64_t shift = (first + count) % WORD, clear = ~(bits[(first + count) / WORD] >> shift);
        uint64_t ones = clear ? (uint64_t)__builtin_ctzll(clear) : WORD;
        count += ones;
        if (ones < WORD - shift)
            break;
    }
    return min_u64(count, most);
}

uint64_t plan_find(const struct plan *plan, uint64_t offset, uint64_t most, uint64_t *place) {
    uint32_t bits = plan->layout.cluster_bits;
    uint64_t number = offset >> bits, inside = offset % plan->layout.cluster;
    const struct planned_table *table = &plan->tables[first_past(plan, number, true) - 1];
    uint64_t words = table->number * words_of_table(plan);
    uint64_t first = words * WORD + select_bit(plan->bits + words, number - table->before);
    uint64_t clusters = min_u64(divide_up(inside + most, plan->layout.cluster), plan->layout.data - number);
    *place = (first << bits) + inside;
    return min_u64(most, (count_run(plan->bits, first, clusters) << bits) - inside);
}
