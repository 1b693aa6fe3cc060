/* SPDX-License-Identifier: Apache-2.0 */

/* Journals: writing lines, and replacing the file. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/durable.h"
#include "base/clock.h"
#include "base/numbers.h"
#include "base/syscalls.h"
#include "durable/journal.h"

#define MODE 0600
#define VERSION "imageio-durable 1 "
#define NEW_PREFIX ".new-" /* runtime/state.py removes files that a crash has left */

/* Most bytes of a line, and of the text that is written in one call. */
#define LINE 64u
#define TEXT 8192u

/* The CRC-32 of zlib and gzip (RFC 1952, section 8), half a byte at a time. */
static uint32_t add_crc(uint32_t crc, const char *text, size_t length) {
    static const uint32_t HALF[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    crc = ~crc;
    for (size_t i = 0; i < length; i++) {
        crc ^= (unsigned char)text[i];
        crc = HALF[crc & 15] ^ (crc >> 4);
        crc = HALF[crc & 15] ^ (crc >> 4);
    }
    return ~crc;
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static bool is_header(const char *header) {
    size_t length = strnlen(header, IOU_DURABLE_HEADER + 1);
    for (size_t i = 0; i < length; i++)
        if (header[i] < ' ' || header[i] > '~')
            return false;
    return length > 0 && length <= IOU_DURABLE_HEADER;
}

static bool is_name(const char *name) {
    size_t length = strnlen(name, NAME_MAX);
    return length > 0 && length + strlen(NEW_PREFIX) <= NAME_MAX && !strchr(name, '/') && name[0] != '.';
}

int journal_init(struct journal *journal, int directory, const char *name, const char *header) {
    *journal = (struct journal){.directory = directory, .fd = -1};
    if (!is_name(name) || !is_header(header))
        return -EINVAL;
    journal->name = strdup(name);
    journal->header = strdup(header);
    if (!journal->name || !journal->header || asprintf(&journal->new_name, NEW_PREFIX "%s", name) == -1) {
        journal->new_name = NULL;
        journal_free(journal);
        return -ENOMEM;
    }
    return 0;
}

static void close_journal(struct journal *journal) {
    if (journal->fd != -1)
        sys_close(journal->fd);
    journal->fd = -1;
    journal->size = 0;
    journal->dirty = false;
}

void journal_close(struct journal *journal) {
    close_journal(journal);
    journal->directory = -1;
}

void journal_free(struct journal *journal) {
    journal_close(journal);
    free(journal->name);
    free(journal->new_name);
    free(journal->header);
    *journal = (struct journal){.directory = -1, .fd = -1};
}

/* ---- lines ------------------------------------------------------------------------------------------------------ */

static int write_bytes(int fd, const char *text, size_t length, uint64_t offset) {
    while (length) {
        ssize_t count = sys_pwrite(fd, text, length, offset);
        if (count <= 0)
            return count ? (int)count : -EIO;
        text += count;
        length -= (size_t)count;
        offset += (uint64_t)count;
    }
    return 0;
}

/* Text that is not in the file yet, behind the valid lines. */
struct text {
    size_t length;
    char bytes[TEXT];
};

static int write_text(struct journal *journal, struct text *text) {
    int error = write_bytes(journal->fd, text->bytes, text->length, journal->size);
    journal->size += text->length;
    text->length = 0;
    return error;
}

/* Write "+ START END CRC\n" behind the lines before it. */
static int write_line(struct journal *journal, struct text *text, char sign, const iou_range *range) {
    char *line = text->bytes + text->length;
    int length = snprintf(line, LINE, "%c %" PRIu64 " %" PRIu64 " ", sign, range->start, range->end);
    journal->crc = add_crc(journal->crc, line, (size_t)length - 1);
    length += snprintf(line + length, LINE - (size_t)length, "%08" PRIx32 "\n", journal->crc);
    text->length += (size_t)length;
    journal->lines++;
    journal->dirty = true;
    return text->length + LINE > TEXT ? write_text(journal, text) : 0;
}

static int write_ranges(struct journal *journal, const struct ranges *ranges) {
    struct text text;
    text.length = 0;
    struct place place = {0};
    int error = 0;
    for (const iou_range *range; !error && (range = blocks_next(ranges, &place));)
        error = write_line(journal, &text, '+', range);
    return error ? error : write_text(journal, &text);
}

static int write_count(const struct journal *journal) {
    char text[LINE];
    int length = snprintf(text, sizeof(text), "%010" PRIu32 " ", journal->lines);
    uint32_t crc = add_crc(0, text, (size_t)length - 1);
    length += snprintf(text + length, sizeof(text) - (size_t)length, "%08" PRIx32 "\n", crc);
    return write_bytes(journal->fd, text, (size_t)length, journal->count_at);
}

/* After an error, let the journal be as it was before. */
static int settle_journal(struct journal *journal, const struct journal *before, int error) {
    if (error) {
        *journal = *before;
        journal->broken = sys_ftruncate(journal->fd, journal->size) < 0;
    }
    return error;
}

static bool is_writable(const struct journal *journal) {
    return journal->fd != -1 && !journal->broken;
}

int journal_append(struct journal *journal, const struct ranges *ranges) {
    struct journal before = *journal;
    return is_writable(journal) ? settle_journal(journal, &before, write_ranges(journal, ranges)) : -EIO;
}

int journal_take_out(struct journal *journal, iou_range range) {
    struct journal before = *journal;
    struct text text;
    text.length = 0;
    if (!is_writable(journal))
        return -EIO;
    int error = write_line(journal, &text, '-', &range);
    return settle_journal(journal, &before, error ? error : write_text(journal, &text));
}

int journal_sync(struct journal *journal) {
    int error = sys_fdatasync(journal->fd);
    if (error) {
        journal->broken = true;
        return error;
    }
    journal->dirty = false;
    journal->synced_at = now_ns();
    write_count(journal); /* if it fails, the count is too small, which is harmless */
    return 0;
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static int write_head(struct journal *journal) {
    char text[IOU_DURABLE_HEADER + LINE];
    int length = snprintf(text, sizeof(text), VERSION "%s ", journal->header);
    journal->crc = add_crc(0, text, (size_t)length - 1);
    length += snprintf(text + length, sizeof(text) - (size_t)length, "%08" PRIx32 "\n", journal->crc);
    int error = write_bytes(journal->fd, text, (size_t)length, 0);
    journal->count_at = (uint64_t)length;
    if (!error)
        error = write_count(journal);
    journal->size = journal->count_at + sizeof("0123456789 01234567\n") - 1;
    return error;
}

/* Write a whole journal into its file, which is new. */
static int fill_journal(struct journal *journal, const struct ranges *ranges) {
    int error = write_head(journal);
    if (!error)
        error = write_ranges(journal, ranges);
    if (!error)
        error = write_count(journal);
    return error ? error : sys_fdatasync(journal->fd);
}

static int sync_directory(const struct journal *journal) {
    return fsync(journal->directory) == -1 ? -errno : 0;
}

int journal_rewrite(struct journal *journal, const struct ranges *ranges) {
    struct journal next = *journal;
    next.lines = 0;
    next.broken = false;
    next.fd = openat(journal->directory, journal->new_name,
                     O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, MODE);
    if (next.fd == -1)
        return -errno;
    int error = fill_journal(&next, ranges);
    if (!error && renameat(journal->directory, journal->new_name, journal->directory, journal->name) == -1)
        error = -errno;
    if (error) {
        sys_close(next.fd);
        unlinkat(journal->directory, journal->new_name, 0);
        return error;
    }
    if (journal->fd != -1)
        sys_close(journal->fd);
    next.dirty = false;
    next.synced_at = now_ns();
    *journal = next;
    return sync_directory(journal);
}

int journal_remove(struct journal *journal) {
    close_journal(journal);
    if (unlinkat(journal->directory, journal->name, 0) == -1 && errno != ENOENT)
        return -errno;
    return sync_directory(journal);
}
