/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Journals: the files of records (journal.c). A journal has lines of text:
 *
 *     imageio-durable 1 HEADER CRC         what the record is of
 *     LINES CRC                            so many of the lines below are there; 10 digits
 *     + START END CRC                      bytes START up to, not including, END are durable
 *     - START END CRC                      they are not
 *
 * CRC is the CRC-32 of all text before it in the first line, and in those below it of the text of the line before it,
 * from the CRC of the line before on; 8 hexadecimal digits. So a line is valid only behind those that it was written
 * behind. The second line, whose CRC is its own, is written in place after the lines that it counts are on stable
 * storage: a file that was cut short by somebody else has less. imageio_daemon/image/journal.py reads journals.
 *
 * Functions return 0 or -errno. The owner has a lock.
 */

#ifndef IOUTIL_DURABLE_JOURNAL_H
#define IOUTIL_DURABLE_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "api/ioutil.h"
#include "durable/ranges.h"

struct journal {
    int directory; /* of the caller */
    int fd;        /* -1: there is no journal */
    char *name, *new_name, *header;
    uint64_t count_at; /* the offset of the second line */
    uint64_t size;     /* of the valid lines */
    uint32_t lines, crc;
    bool dirty; /* lines are not on stable storage */
    /* Only a new file helps: behind the valid lines is something else that cannot be cut off, or a sync has failed. The
       next sync may succeed although lines are lost, and then a removal would not be found behind them. */
    bool broken;
    uint64_t synced_at;
};

/* Copy the names. -EINVAL, -ENOMEM. */
int journal_init(struct journal *journal, int directory, const char *name, const char *header);

/* Close the file and let go of the directory: each function that writes fails from now on. */
void journal_close(struct journal *journal);

/* Close the file, and free the names. */
void journal_free(struct journal *journal);

/* Replace the file by one that has these ranges, durably. After an error the old one is in use. */
int journal_rewrite(struct journal *journal, const struct ranges *ranges);

/* Append that ranges are durable, or that one is not any more. After an error no line of it is there. */
int journal_append(struct journal *journal, const struct ranges *ranges);
int journal_take_out(struct journal *journal, iou_range range);

/* Put all lines on stable storage. */
int journal_sync(struct journal *journal);

/* Remove the file, durably. */
int journal_remove(struct journal *journal);

#endif
