/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Records of durable ranges: threads change an image of some units, flush it, write the journal and ask. A unit is
 * told as durable, by the record or its journal, only if a flush that began after its last change has succeeded.
 */

#include <fcntl.h>

#include "api/durable.h"
#include "stress.h"

#define UNIT UINT64_C(4096)
#define UNITS 512u
#define LONGEST 8u
#define CHANGERS 4u
#define FLUSHERS 2u
#define NEVER UINT64_MAX
#define TEXT (1u << 21)

/* A unit belongs to the thread that has claimed it. changed: when its last change ended, by the clock below. */
struct unit {
    atomic_flag claimed;
    uint64_t changed;
    bool fua;
};

static struct unit units[UNITS];
static atomic_uint_fast64_t clock_now;
static atomic_uint_fast64_t good_flush; /* the latest time at which a flush began that has succeeded */
static atomic_bool ending;
static iou_durable *record;
static char path[4096];

struct worker {
    pthread_t thread;
    uint64_t random, rounds;
};

/* ---- what is told ----------------------------------------------------------------------------------------------- */

static bool record_tells(uint64_t unit) {
    iou_range range;
    return iou_durable_ranges(record, unit * UNIT, &range, 1) && range.start < (unit + 1) * UNIT;
}

/* Apply the lines of a journal, without its checksums, as far as they are whole. Returns whether it tells the unit. */
static bool journal_tells(const char *text, uint64_t unit) {
    bool told = false;
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        uint64_t from, to;
        char sign;
        if (sscanf(line, "%c %lu %lu ", &sign, &from, &to) == 3 && (sign == '+' || sign == '-'))
            if (from < (unit + 1) * UNIT && unit * UNIT < to)
                told = sign == '+';
    }
    return told;
}

static void read_journal(char *text) {
    int fd = open(path, O_RDONLY);
    ssize_t size = fd == -1 ? 0 : read(fd, text, TEXT - 1);
    CHECK(size >= 0 && size < (ssize_t)TEXT - 1);
    text[size] = 0;
    if (fd != -1)
        close(fd);
}

static bool is_durable(const struct unit *unit) {
    return unit->changed != NEVER && (unit->fua || unit->changed < good_flush);
}

/* The thread has claimed the unit. */
static void check_told(uint64_t unit, char *text) {
    CHECK(!record_tells(unit) || is_durable(&units[unit]));
    if (text) {
        read_journal(text);
        CHECK(!journal_tells(text, unit) || is_durable(&units[unit]));
    }
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

static bool claim(uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        if (atomic_flag_test_and_set(&units[first + i].claimed)) {
            while (i--)
                atomic_flag_clear(&units[first + i].claimed);
            return false;
        }
    return true;
}

static void unclaim(uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        atomic_flag_clear(&units[first + i].claimed);
}

static void begin_change(uint64_t first, uint64_t count) {
    int error = iou_durable_try_change(record, first * UNIT, count * UNIT);
    if (error == -EAGAIN)
        error = iou_durable_change(record, first * UNIT, count * UNIT);
    CHECK(error == 0);
    for (uint64_t i = 0; i < count; i++)
        units[first + i].changed = NEVER;
}

/* End a change, which may have failed. */
static void end_change(uint64_t *random, uint64_t first, uint64_t count) {
    bool fua = below(random, 4) == 0;
    if (below(random, 8) == 0)
        return;
    for (uint64_t i = 0; i < count; i++) {
        units[first + i].changed = ++clock_now;
        units[first + i].fua = fua;
    }
    iou_durable_changed(record, first * UNIT, count * UNIT, fua);
}

static void *change(void *argument) {
    struct worker *worker = argument;
    char *text = malloc(TEXT);
    CHECK(text);
    for (uint64_t round = 0; round < worker->rounds; round++) {
        uint64_t first = below(&worker->random, UNITS), count = 1 + below(&worker->random, LONGEST);
        count = count < UNITS - first ? count : UNITS - first;
        if (!claim(first, count))
            continue;
        bool looks = below(&worker->random, 4) == 0;
        check_told(first, looks ? text : NULL);
        if (below(&worker->random, 4)) {
            begin_change(first, count);
            check_told(first + below(&worker->random, count), looks ? text : NULL);
            end_change(&worker->random, first, count);
        }
        unclaim(first, count);
    }
    free(text);
    return NULL;
}

static void *flush(void *argument) {
    struct worker *worker = argument;
    while (!ending) {
        bool all = below(&worker->random, 2), works = below(&worker->random, 4);
        uint64_t first = below(&worker->random, UNITS);
        iou_covered *covered = iou_durable_flush(record, first * UNIT, all ? 0 : LONGEST * UNIT);
        uint64_t began = ++clock_now, known = good_flush;
        usleep((unsigned)below(&worker->random, 300));
        while (works && known < began && !atomic_compare_exchange_weak(&good_flush, &known, began))
            ;
        iou_durable_flushed(record, covered, works ? 0 : ECANCELED);
    }
    return NULL;
}

static void *write_and_ask(void *argument) {
    struct worker *worker = argument;
    iou_range ranges[UNITS];
    iou_durable_info info;
    while (!ending) {
        iou_durable_is_due(record);
        iou_durable_write(record);
        uint32_t count = iou_durable_ranges(record, 0, ranges, UNITS);
        for (uint32_t i = 0; i < count; i++)
            CHECK(ranges[i].start < ranges[i].end && (i == 0 || ranges[i - 1].end < ranges[i].start));
        iou_durable_state(record, &info);
        CHECK(info.error == 0 && info.bytes <= UNITS * UNIT);
        usleep((unsigned)below(&worker->random, 1000));
    }
    return NULL;
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

/* The journal of a record that has ended tells what the record told, and nothing more. */
static uint64_t check_end(void) {
    char *text = malloc(TEXT);
    uint64_t durable = 0;
    CHECK(text);
    iou_durable_end(record);
    read_journal(text);
    for (uint64_t unit = 0; unit < UNITS; unit++) {
        CHECK(!journal_tells(text, unit) || (record_tells(unit) && is_durable(&units[unit])));
        durable += journal_tells(text, unit);
    }
    free(text);
    return durable;
}

static uint64_t run(int where, uint64_t rounds, uint64_t seed) {
    struct worker workers[CHANGERS + FLUSHERS + 1];
    size_t number = sizeof(workers) / sizeof(workers[0]);
    ending = false;
    good_flush = 0;
    for (uint64_t i = 0; i < UNITS; i++)
        units[i] = (struct unit){.claimed = ATOMIC_FLAG_INIT, .changed = NEVER};
    CHECK(iou_durable_new(where, "journal", "image ticket", NULL, 0, &record) == 0);
    for (size_t i = 0; i < number; i++) {
        void *(*work)(void *) = i < CHANGERS ? change : i < CHANGERS + FLUSHERS ? flush : write_and_ask;
        workers[i] = (struct worker){.random = seed + 2 * i, .rounds = rounds};
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (size_t i = 0; i < number; i++) {
        if (i == CHANGERS)
            ending = true;
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
    }
    uint64_t durable = check_end();
    iou_durable_release(record);
    return durable;
}

void test_durable(unsigned rounds, uint64_t seed) {
    uint64_t durable = 0;
    int where = open(directory, O_RDONLY | O_DIRECTORY);
    CHECK(where != -1);
    snprintf(path, sizeof(path), "%s/journal", directory);
    for (unsigned round = 0; round < rounds; round++)
        durable += run(where, 200, seed + 100 * round);
    close(where);
    printf("durable: %u records, %lu units at their ends\n", rounds, durable);
}
