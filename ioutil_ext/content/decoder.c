/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Decoders of bodies, which are one frame, and of clusters. Nothing else includes the library's header.
 *
 * What a peer may cost is bounded before it is spent: memory by the window in the head of the frame, content by the
 * announced length, data by what a frame of this length can need. The library gets no room for more content than was
 * announced, however much the data would make.
 */

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/numbers.h"
#include "content/zstd.h"

/*
 * The memory of the library beside the window: 94 KiB of tables, a block of data and up to two of content (128 KiB
 * each). Measured with ZSTD_sizeof_DCtx() of 1.5.4: 225 KiB beside a window of 8 MiB.
 */
#define BESIDE_WINDOW (512 * KIB)

/*
 * Most bytes of data for `length` bytes of content. A block of 128 KiB that cannot be compressed takes 3 more; a
 * program that ends a block every 64 bytes takes 5 % more. So blocks without content cannot continue without end.
 */
#define MOST_DATA(length) ((length) + (length) / 8 + KIB)

_Static_assert(IOU_ZSTD_MAX_WINDOW + BESIDE_WINDOW <= IOU_ZSTD_MAX_MEMORY, "the largest window");

/* Of iou_zstd_get_totals(). */
static atomic_uint_fast64_t all_taken, all_made;

struct iou_zstd {
    uint64_t left;  /* bytes of content that were not made */
    uint64_t spare; /* bytes of data that may still arrive */
    unsigned char head[FRAME_MAX_HEAD];
    size_t size, needed; /* bytes of the head that have arrived; all, 0: not known */
    struct frame frame;
    uint64_t memory;      /* bytes that decoding may take, 0: not known */
    struct window window; /* these, when they were taken */
    ZSTD_DCtx *context;   /* NULL: decoding has not begun */
    bool ended;
    iou_zstd_refusal refusal;
};

int iou_zstd_new(uint64_t length, iou_zstd **result) {
    if (length == 0 || length > INT64_MAX)
        return -EINVAL;
    iou_zstd *decoder = calloc(1, sizeof(*decoder));
    if (!decoder)
        return -ENOMEM;
    decoder->left = length;
    decoder->spare = MOST_DATA(length);
    *result = decoder;
    return 0;
}

void iou_zstd_free(iou_zstd *decoder) {
    if (!decoder)
        return;
    ZSTD_freeDCtx(decoder->context);
    window_put(&decoder->window);
    free(decoder);
}

void iou_zstd_get_totals(iou_zstd_totals *totals) {
    *totals = (iou_zstd_totals){.memory = window_total(), .taken = all_taken, .made = all_made};
}

/* A text of its own, which the SBOM of a wheel is made from. */
const char *iou_zstd_version(void) {
    return "zstd " ZSTD_VERSION_STRING;
}

/* ---- the head --------------------------------------------------------------------------------------------------- */

/* Take data until the head has `most` bytes. Returns how many were taken. */
static size_t take_head_bytes(iou_zstd *decoder, const char *data, size_t length, size_t most) {
    size_t count = decoder->size < most ? min_u64(length, most - decoder->size) : 0;
    if (count)
        memcpy(decoder->head + decoder->size, data, count);
    decoder->size += count;
    return count;
}

/* Read the head, which is whole. Returns the bytes that decoding takes; 0: it is refused. */
static uint64_t read_head(iou_zstd *decoder) {
    const struct frame *frame = &decoder->frame;
    decoder->refusal = frame_read(decoder->head, &decoder->frame);
    if (!decoder->refusal && frame->has_content && frame->content != decoder->left)
        decoder->refusal = IOU_ZSTD_LENGTH;
    uint64_t window = frame->has_content ? min_u64(frame->window, frame->content) : frame->window;
    return decoder->refusal ? 0 : window + BESIDE_WINDOW;
}

int64_t iou_zstd_head(iou_zstd *decoder, const void *data, uint64_t length, uint64_t *memory) {
    *memory = 0;
    size_t taken = take_head_bytes(decoder, data, length, FRAME_LEAST);
    if (decoder->size >= FRAME_LEAST && !decoder->needed) {
        decoder->needed = frame_head_size(decoder->head);
        decoder->refusal = decoder->needed ? 0 : IOU_ZSTD_NO_FRAME;
    }
    if (decoder->needed)
        taken += take_head_bytes(decoder, (const char *)data + taken, length - taken, decoder->needed);
    if (decoder->needed && decoder->size == decoder->needed && !decoder->refusal)
        *memory = decoder->memory = read_head(decoder);
    return decoder->refusal ? -(int64_t)decoder->refusal : (int64_t)taken;
}

/* ---- its memory ------------------------------------------------------------------------------------------------- */

int iou_zstd_admit(iou_zstd *decoder, uint64_t owner) {
    if (!decoder->memory || decoder->window.memory)
        return -EINVAL;
    return window_take(&decoder->window, owner, decoder->memory);
}

void iou_zstd_rest(iou_zstd *decoder) {
    if (decoder->window.memory)
        window_rest(&decoder->window);
}

void iou_zstd_go_on(iou_zstd *decoder) {
    if (decoder->window.memory)
        window_go_on(&decoder->window);
}

uint32_t iou_zstd_is_wanted(const iou_zstd *decoder) {
    return decoder->window.wanted;
}

/* ---- the content ------------------------------------------------------------------------------------------------ */

static int refuse_frame(iou_zstd *decoder, iou_zstd_refusal refusal, iou_zstd_step *step) {
    decoder->refusal = refusal;
    step->refusal = (uint32_t)refusal;
    return -EBADMSG;
}

/* Give data to the library. Counts what it takes, and what it makes in the room. */
static int run_library(iou_zstd *decoder, ZSTD_inBuffer *data, ZSTD_outBuffer *room, iou_zstd_step *step) {
    size_t before = room->pos, result = ZSTD_decompressStream(decoder->context, room, data);
    if (ZSTD_isError(result))
        return refuse_frame(decoder, IOU_ZSTD_DATA, step);
    decoder->left -= room->pos - before;
    decoder->window.made += room->pos - before;
    decoder->ended = result == 0;
    return 0;
}

/* Make the library ready, and give it the head. Its limit is the least power of two with the window. */
static int begin_decoding(iou_zstd *decoder, iou_zstd_step *step) {
    ZSTD_inBuffer head = {decoder->head, decoder->size, 0};
    ZSTD_outBuffer none = {NULL, 0, 0};
    int log = 10;
    if (!decoder->window.memory)
        return -EINVAL;
    while (UINT64_C(1) << log < decoder->frame.window)
        log++;
    decoder->context = ZSTD_createDCtx();
    if (!decoder->context)
        return -ENOMEM;
    if (ZSTD_isError(ZSTD_DCtx_setParameter(decoder->context, ZSTD_d_windowLogMax, log)))
        return -EINVAL;
    return run_library(decoder, &head, &none, step);
}

/* Read up to the end of the frame, which must not have more content. */
static int finish_frame(iou_zstd *decoder, ZSTD_inBuffer *data, iou_zstd_step *step) {
    char excess;
    ZSTD_outBuffer room = {&excess, sizeof(excess), 0};
    uint64_t left = decoder->left;
    int error = run_library(decoder, data, &room, step);
    decoder->left = left;
    return error || !room.pos ? error : refuse_frame(decoder, IOU_ZSTD_LENGTH, step);
}

/* Decode until the data is used up, or the room is full. After the last content, read up to the end of the frame. */
static int decode_data(iou_zstd *decoder, ZSTD_inBuffer *data, ZSTD_outBuffer *room, iou_zstd_step *step) {
    int error = 0;
    if (decoder->left && !decoder->ended)
        error = run_library(decoder, data, room, step);
    if (!error && decoder->left == 0 && !decoder->ended)
        error = finish_frame(decoder, data, step);
    if (!error && decoder->ended && decoder->left)
        error = refuse_frame(decoder, IOU_ZSTD_LENGTH, step);
    if (!error && decoder->ended && data->pos < data->size)
        error = refuse_frame(decoder, IOU_ZSTD_TRAILING, step);
    return error;
}

int iou_zstd_decode(iou_zstd *decoder, const void *data, uint64_t length, void *room, uint64_t size,
                    iou_zstd_step *step) {
    ZSTD_inBuffer in = {data, min_u64(length, decoder->spare), 0};
    ZSTD_outBuffer out = {room, min_u64(size, decoder->left), 0};
    *step = (iou_zstd_step){0};
    if (decoder->refusal)
        return refuse_frame(decoder, decoder->refusal, step);
    if (length && !in.size)
        return refuse_frame(decoder, decoder->ended ? IOU_ZSTD_TRAILING : IOU_ZSTD_IDLE, step);
    int error = decoder->context ? 0 : begin_decoding(decoder, step);
    if (!error)
        error = decode_data(decoder, &in, &out, step);
    decoder->spare -= in.pos;
    step->taken = in.pos;
    step->made = out.pos;
    all_taken += in.pos;
    all_made += out.pos;
    step->left = decoder->left;
    step->ended = decoder->ended;
    return error;
}

/* ---- clusters of images ----------------------------------------------------------------------------------------- */

/* The window of a frame is the cluster if qemu has made it. Other programs may have used a larger one, up to the 8 MiB
   that decoders should support (RFC 8878 3.1.1.1.2). With more, a file could demand much memory. */
#define MOST_WINDOW_BITS 23

/* Each step that moves nothing ends the loop, so empty frames cannot continue without end. */
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
