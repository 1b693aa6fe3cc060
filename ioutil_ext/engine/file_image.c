/* SPDX-License-Identifier: Apache-2.0 */

/* The functions of files and block devices, by kind of operation. */

#include "base/syscalls.h"
#include "engine/running.h"
#include "image/io.h"

static int run_stat(struct op *op) {
    uint64_t size;
    int error = size_refresh(op, op->handle, &size);
    if (!error)
        look_at_content(op->handle);
    if (!error && op->flags & IOU_SPACE && sys_space(op->handle->fd, &op->result.size) < 0)
        op->result.size = UINT64_MAX; /* only a hint: no failure without it */
    return error;
}

static bool is_file_prompt(const struct op *op) {
    return op->alone || io_is_prompt(op);
}

const struct image_ops FILE_IMAGE = {
    .claim = claim_operation,
    .is_prompt = is_file_prompt,
    .run =
        {
            [IOU_STAT] = run_stat,
            [IOU_READ] = io_read,
            [IOU_WRITE] = io_write,
            [IOU_ZERO] = zero_run,
            [IOU_TRIM] = zero_trim,
            [IOU_FLUSH] = io_sync,
            [IOU_EXTENTS] = extents_run,
        },
    .sync = io_sync,
};
