/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "qcow2/open.h"

int judge(struct op *op, iou_qcow2_verdict *verdict, iou_qcow2_judgment judgment, const char *text, ...) {
    va_list values;
    if (!verdict->judgment) {
        verdict->judgment = judgment;
        va_start(values, text);
        vsnprintf(verdict->reason, sizeof(verdict->reason), text, values);
        va_end(values);
    }
    return op_fail(op, IOU_SYS_NONE, judgment == IOU_QCOW2_REFUSE ? EUCLEAN : ENOTSUP);
}

/*
 * qemu repairs reference counts that a crash has left behind, keeps bitmaps, and clears unknown autoclear features.
 * Only writing needs this.
 */
int judge_header(struct op *op, iou_qcow2_verdict *verdict, const struct header *header, bool writable) {
    const char *fallback = NULL;
    if (header->incompatible & INCOMPAT_DATA_FILE)
        fallback = "its data is in another file";
    if (writable && header->incompatible & INCOMPAT_CORRUPT)
        return judge(op, verdict, IOU_QCOW2_REFUSE, "it is marked as corrupt");
    if (writable && header->incompatible & INCOMPAT_DIRTY)
        fallback = "its reference counts have to be repaired first";
    if (writable && header->incompatible & INCOMPAT_EXTENDED)
        fallback = "it has subclusters, and is to be written";
    if (writable && header->has_bitmaps)
        fallback = "it has bitmaps, and is to be written";
    if (writable && header->autoclear & ~(uint64_t)AUTOCLEAR_BITMAPS)
        fallback = "it has autoclear features, and is to be written";
    if (writable && header->version == 2 && header->has_backing)
        fallback = "its version 2 cannot mark zeros over a backing file";
    return fallback ? judge(op, verdict, IOU_QCOW2_FALLBACK, "%s", fallback) : 0;
}
