/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Images in the format qcow2: whatever the file has, it is refused, or read and written without a fault. What was
 * written is read again, also after the image was closed and opened, which must be possible.
 */

#include "fuzz.h"

#include <sys/mman.h>

#include "api/qcow2.h"

/* The part of the disk that is looked at, and the longest request. */
#define LOOKED_AT (64 * KIB)
#define LONGEST (24 * KIB)

struct made {
    int fd;
    char path[64];
};

static char before[LOOKED_AT], after[LOOKED_AT];

static void make_image(struct made *image, const char *data, size_t size) {
    image->fd = memfd_create("image", MFD_CLOEXEC);
    CHECK(image->fd != -1 && write(image->fd, data, size) == (ssize_t)size);
    snprintf(image->path, sizeof(image->path), "/proc/self/fd/%d", image->fd);
}

/* The chain is as long as the header says: its name is taken over, so that what comes after that is tried, too. */
static const char *backing_name(const char *data, size_t size, char name[1024]) {
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t offset = 0;
    if (size < 72)
        return NULL;
    for (unsigned i = 8; i < 16; i++)
        offset = offset << 8 | bytes[i];
    uint32_t length = (uint32_t)bytes[16] << 24 | bytes[17] << 16 | bytes[18] << 8 | bytes[19];
    if (!offset || offset >= size || length > size - offset || length > 1023)
        return NULL;
    memcpy(name, data + offset, length);
    name[length] = 0;
    return name;
}

static iou_handle *open_chain(const struct made *image, const char *backing, const struct made *below, uint32_t flags,
                              iou_qcow2_verdict *verdict) {
    iou_qcow2_layer layers[] = {{.path = image->path, .backing = backing}, {.path = below->path, .raw = 1}};
    iou_qcow2_chain chain = {.layers = layers, .count = backing ? 2 : 1, .verdict = verdict};
    chain.bitmap = flags & IOU_WRITABLE ? NULL : "b";
    iou_completion completion;
    int error = iou_open_qcow2(&chain, flags | IOU_SHARED, NULL, &completion);
    CHECK(error ? !completion.handle : verdict->judgment == IOU_QCOW2_NATIVE);
    CHECK(!verdict->judgment || !error || verdict->reason[0]);
    return error ? NULL : completion.handle;
}

static int execute(iou_handle *handle, uint32_t kind, uint32_t flags, uint64_t offset, uint64_t length, void *buffer) {
    iou_completion completion;
    return iou_execute(handle, kind, flags, offset, length, buffer, length, NULL, &completion);
}

/* Read what is looked at; a piece that cannot be read counts as one that has no bytes. */
static void look(iou_handle *handle, char *content, uint64_t size) {
    for (uint64_t at = 0; at < min_u64(size, LOOKED_AT); at += 4096)
        if (execute(handle, IOU_READ, 0, at, min_u64(4096, size - at), content + at))
            memset(content + at, 0x55, 4096);
}

static void check_extents(iou_handle *handle, uint64_t size, uint32_t flags) {
    iou_extent extents[8];
    iou_completion completion;
    uint64_t at = 0;
    if (iou_execute(handle, IOU_EXTENTS, flags, 0, size, extents, sizeof(extents), NULL, &completion))
        return;
    CHECK(completion.count <= 8);
    for (uint32_t i = 0; i < completion.count; at = extents[i++].end)
        CHECK(extents[i].end > at && (!i || extents[i].flags != extents[i - 1].flags));
    CHECK(at <= size && completion.done == at);
}

static void operate(iou_handle *handle, struct input *input, uint64_t size, bool *writes_well) {
    static char data[LONGEST];
    unsigned what = take_byte(input);
    uint64_t offset = (take_byte(input) << 8 | take_byte(input)) * UINT64_C(97) % min_u64(size, LOOKED_AT);
    uint64_t length = min_u64(1 + take_byte(input) * UINT64_C(93), size - offset);
    memset(data, (int)what, sizeof(data));
    int error = 0;
    switch (what % 8) {
    case 0:
    case 1:
    case 2:
        error = execute(handle, IOU_WRITE, 0, offset, length, data);
        break;
    case 3:
        memset(data, 0, sizeof(data));
        error = execute(handle, IOU_ZERO, what & 8 ? IOU_ALLOCATE : 0, offset, length, data);
        break;
    case 4:
        CHECK(execute(handle, IOU_TRIM, 0, offset, length, data) != -EINVAL);
        return;
    case 5:
        *writes_well &= execute(handle, IOU_FLUSH, 0, 0, 0, NULL) == 0;
        return;
    default:
        CHECK(execute(handle, IOU_ZERO, IOU_FAST_ONLY, offset, length, data) != -EINVAL);
        return;
    }
    if (error)
        return;
    CHECK(execute(handle, IOU_READ, 0, offset, length, after) == 0);
    for (uint64_t i = 0; i < length; i++)
        CHECK(after[i] == data[0]);
}

static void write_image(const struct made *image, const char *backing, const struct made *below,
                        struct input *operations) {
    iou_qcow2_verdict verdict;
    iou_info info;
    bool writes_well = true;
    iou_handle *handle = open_chain(image, backing, below, IOU_WRITABLE, &verdict);
    if (!handle)
        return;
    iou_handle_info(handle, &info);
    while (info.size && operations->at < operations->end)
        operate(handle, operations, info.size, &writes_well);
    look(handle, before, info.size);
    CHECK(execute(handle, IOU_CLOSE, 0, 0, 0, NULL) == 0);
    if (!writes_well)
        return;
    handle = open_chain(image, backing, below, IOU_WRITABLE, &verdict);
    CHECK(handle);
    look(handle, after, info.size);
    CHECK(memcmp(before, after, min_u64(info.size, LOOKED_AT)) == 0);
    CHECK(execute(handle, IOU_CLOSE, 0, 0, 0, NULL) == 0);
}

/* A byte: how many bytes of operations follow. The rest is the image. */
static void run(const char *data, size_t size) {
    struct input input = {data, data + size};
    unsigned length = take_byte(&input);
    length = (unsigned)min_u64(length, (uint64_t)(input.end - input.at));
    struct input operations = {input.at, input.at + length};
    struct made image, below;
    iou_qcow2_verdict verdict;
    iou_info info;
    char name[1024];
    size_t bytes = (size_t)(input.end - operations.end);
    const char *backing = backing_name(operations.end, bytes, name);
    make_image(&image, operations.end, bytes);
    make_image(&below, data, size);
    memset(before, 0, sizeof(before));
    memset(after, 0, sizeof(after));
    iou_handle *handle = open_chain(&image, backing, &below, 0, &verdict);
    if (handle) {
        iou_handle_info(handle, &info);
        look(handle, before, info.size);
        check_extents(handle, info.size, 0);
        check_extents(handle, info.size, IOU_DIRTY);
        CHECK(execute(handle, IOU_CLOSE, 0, 0, 0, NULL) == 0);
    }
    write_image(&image, backing, &below, &operations);
    close(image.fd);
    close(below.fd);
}

const struct target qcow2_target = {.name = "qcow2", .run = run};
