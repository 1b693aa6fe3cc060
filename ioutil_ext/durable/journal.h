/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Journals: the files of records (journal.c). A journal has lines of text:
 *
 *     imageio-durable 1 HEADER CRC         HEADER identifies image and ticket
 *     LINES CRC                            the number of lines below, 10 digits
 *     + START END CRC                      bytes START up to, not including, END are durable
 *     - START END CRC                      these bytes are not durable any more
 *
 * Each CRC is a CRC-32 in 8 hexadecimal digits, of the text before it on its line. The CRC of each line below the
 * second continues that of the line before; the first of them continues that of the first line. So a line is valid only
 * after the same lines as when it was written. The second line has a CRC of its own. It is written in place when the
 * lines that it counts are on stable storage, so a file that something else has cut short has fewer lines than this
 * number. imageio_daemon/image/journal.py reads journals.
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
    int directory; /* the caller's */
    int fd;        /* or -1 if there is no journal */
    char *name, *new_name, *header;
    uint64_t count_at; /* the offset of the second line */
    uint64_t size;     /* of the valid lines */
    uint32_t lines, crc;
    bool dirty; /* lines are not on stable storage */
    /*
     * Appending cannot help any more, only a new file: there are other bytes behind the valid lines that cannot be cut
     * off, or a sync has failed. After a failed sync the next one may succeed although lines are lost, and then readers
     * would not find a removal behind the lost lines.
     */
    bool broken;
    uint64_t synced_at;
};

/* Copy the names. Returns 0, -EINVAL or -ENOMEM. */
int journal_init(struct journal *journal, int directory, const char *name, const char *header);

/* Close the file, and do not use the directory any more. From now on each function that writes fails. */
void journal_close(struct journal *journal);

/* Close the file, and free the names. */
void journal_free(struct journal *journal);

/* Replace the file by one with these ranges, durably. After an error the old file is still in use. */
int journal_rewrite(struct journal *journal, const struct ranges *ranges);

/* Append that ranges are durable, or that a range is not durable any more. After an error nothing was appended. */
int journal_append(struct journal *journal, const struct ranges *ranges);
int journal_take_out(struct journal *journal, iou_range range);

/* Put all lines on stable storage. */
int journal_sync(struct journal *journal);

/* Remove the file, durably. */
int journal_remove(struct journal *journal);

#endif
