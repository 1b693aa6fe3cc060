/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Decoding a cluster. The cost is bounded: data of at most two clusters, content of one. The length of the data is
 * known only in sectors, so bytes after the stream are no error. Nothing else includes zlib.
 */

#include <errno.h>
#include <zlib.h>

#include "base/numbers.h"
#include "content/zstd.h"
#include "qcow2/chain.h"
#include "qcow2/layer.h"
#include "qcow2/map.h"

/* qemu writes raw deflate with a window of 4 KiB. Other programs may have used the largest one. */
#define WINDOW_BITS (-15)

static int inflate_cluster(void *to, size_t size, const void *from, size_t length) {
    z_stream stream = {
        .next_in = (Bytef *)(uintptr_t)from, .avail_in = (uInt)length, .next_out = to, .avail_out = (uInt)size};
    if (inflateInit2(&stream, WINDOW_BITS) != Z_OK)
        return -ENOMEM;
    int code = inflate(&stream, Z_FINISH);
    bool whole = stream.avail_out == 0 && (code == Z_STREAM_END || code == Z_BUF_ERROR);
    inflateEnd(&stream);
    return whole ? 0 : -EIO;
}

static int decode_cluster(struct qcow2 *q, struct op *op, void *to, const void *from, uint64_t length) {
    int error = q->header.compression == COMPRESSION_ZSTD ? zstd_decode_cluster(to, q->cluster, from, length)
                                                          : inflate_cluster(to, q->cluster, from, length);
    return error ? op_fail(op, error == -ENOMEM ? IOU_SYS_MALLOC : IOU_SYS_NONE, error) : 0;
}

int compressed_read(struct qcow2 *q, struct op *op, uint64_t entry, uint64_t start, uint64_t length, void *to) {
    uint64_t offset, most = map_compressed(q, entry, &offset), skip = offset % PAGE_UNIT;
    uint64_t bytes = round_up(skip + most, PAGE_UNIT);
    struct buffers *buffers = &chain_of(op->handle)->decoding;
    uint8_t *data = buffers_get(op, buffers, bytes + q->cluster);
    if (!data)
        return -ENOMEM;
    uint8_t *content = data + bytes;
    int error = layer_read(op, q->file, data, offset - skip, bytes);
    if (!error)
        error = decode_cluster(q, op, content, data + skip, most);
    if (!error)
        memcpy(to, content + start, length);
    buffers_free(op, buffers, data, bytes + q->cluster);
    return error;
}
