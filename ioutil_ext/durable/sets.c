/* SPDX-License-Identifier: Apache-2.0 */

/* Records of durable ranges: their sets. durable.h says how the sets follow changes. The lock is held. */

#include "base/clock.h"
#include "durable/durable.h"

void durable_forget(struct iou_durable *record, uint64_t start, uint64_t end) {
    ranges_remove(&record->changed, start, end);
    for (struct link *node = record->flushes.next; node != &record->flushes; node = node->next)
        ranges_remove(&container_of(node, struct iou_covered, link)->ranges, start, end);
}

/* The journal may have ranges that the set has lost. */
bool durable_has(const struct iou_durable *record, uint64_t start, uint64_t end) {
    return record->durable.lost || ranges_overlap(&record->durable, start, end) ||
           (start < record->leaving.end && record->leaving.start < end);
}

void durable_close(struct iou_durable *record) {
    record->closed = true;
    ranges_free(&record->changed);
}

void durable_add(struct iou_durable *record, const struct ranges *ranges) {
    if (record->closed || ranges->count == 0)
        return;
    ranges_join(&record->durable, ranges);
    ranges_join(&record->unwritten, ranges);
    if (!record->unsynced_since)
        record->unsynced_since = now_ns();
}
