/* SPDX-License-Identifier: Apache-2.0 */

/* The window of a frame is the cluster if qemu has made it. A larger one, up to what the library takes without being
   asked, is for other programs; more would be memory that the file demands. */

#include <errno.h>
#include <zstd.h>

#include "zstd/cluster.h"

#define MOST_WINDOW_BITS 23

/* Each step that moves nothing ends the loop: empty frames cannot go on for ever. */
static int decode_step(ZSTD_DCtx *context, ZSTD_outBuffer *output, ZSTD_inBuffer *input) {
    while (output->pos < output->size) {
        size_t made = output->pos, taken = input->pos;
        if (ZSTD_isError(ZSTD_decompressStream(context, output, input)) || (output->pos == made && input->pos == taken))
            return -EIO;
    }
    return 0;
}

int zstd_decode_cluster(void *to, size_t size, const void *from, size_t length) {
    ZSTD_DCtx *context = ZSTD_createDCtx();
    ZSTD_outBuffer output = {to, size, 0};
    ZSTD_inBuffer input = {from, length, 0};
    if (!context)
        return -ENOMEM;
    int error = -ENOMEM;
    if (!ZSTD_isError(ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, MOST_WINDOW_BITS)))
        error = decode_step(context, &output, &input);
    ZSTD_freeDCtx(context);
    return error;
}
