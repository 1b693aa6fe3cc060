/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Writers of an image in the format qcow2, each with sectors of its own that share clusters with those of others; one
 * more flushes and looks at extents, and another one reads the disk as a file in the format. All is read again, and
 * after the image was closed and opened.
 */

#include "api/qcow2.h"
#include "stress.h"

#define DISK (1 << 20)
#define SECTOR_SIZE 512u
enum { DISK_WRITERS = 4 };

struct disk {
    iou_handle *handle;
    uint64_t operations;
    atomic_uint writing;
    unsigned char content[DISK / SECTOR_SIZE]; /* of each sector, all of its bytes */
};

struct disk_writer {
    struct disk *disk;
    unsigned number;
    uint64_t random;
};

static iou_handle *open_disk(const char *path) {
    iou_qcow2_verdict verdict;
    iou_qcow2_layer layer = {.path = path};
    iou_qcow2_chain chain = {.layers = &layer, .count = 1, .verdict = &verdict};
    iou_completion completion;
    int error = iou_open_qcow2(&chain, IOU_WRITABLE, NULL, &completion);
    if (error)
        fprintf(stderr, "%s: %s\n", verdict.reason, strerror(-error));
    CHECK(error == 0 && verdict.judgment == IOU_QCOW2_NATIVE);
    return completion.handle;
}

static void run_on(iou_handle *handle, uint32_t kind, uint64_t offset, uint64_t length, void *buffer) {
    iou_completion completion;
    CHECK(iou_execute(handle, kind, 0, offset, length, buffer, length, NULL, &completion) == 0);
}

/* One operation on a sector of the writer: each DISK_WRITERS-th is its own. */
static void write_sector(struct disk_writer *writer) {
    struct disk *disk = writer->disk;
    uint64_t sector = below(&writer->random, DISK / SECTOR_SIZE / DISK_WRITERS) * DISK_WRITERS + writer->number;
    unsigned char buffer[SECTOR_SIZE];
    memset(buffer, (int)below(&writer->random, 256), sizeof(buffer));
    switch (below(&writer->random, 8)) {
    case 0:
        memset(buffer, 0, sizeof(buffer));
        run_on(disk->handle, IOU_ZERO, sector * SECTOR_SIZE, SECTOR_SIZE, NULL);
        break;
    case 1:
        run_on(disk->handle, IOU_READ, sector * SECTOR_SIZE, SECTOR_SIZE, buffer);
        CHECK(buffer[0] == disk->content[sector] && buffer[SECTOR_SIZE - 1] == buffer[0]);
        break;
    default:
        run_on(disk->handle, IOU_WRITE, sector * SECTOR_SIZE, SECTOR_SIZE, buffer);
    }
    disk->content[sector] = buffer[0];
}

static void *write_sectors(void *argument) {
    struct disk_writer *writer = argument;
    for (uint64_t i = 0; i < writer->disk->operations; i++)
        write_sector(writer);
    writer->disk->writing--;
    return NULL;
}

/* Clusters are freed while others write, and flushed: the last eighth of the disk is zeroed and written as a whole. */
static void *flush_often(void *argument) {
    struct disk *disk = argument;
    static unsigned char zeros[DISK / 8];
    iou_extent extents[16];
    while (disk->writing) {
        run_on(disk->handle, IOU_FLUSH, 0, 0, NULL);
        run_on(disk->handle, IOU_WRITE, DISK, sizeof(zeros), zeros);
        run_on(disk->handle, IOU_ZERO, DISK, sizeof(zeros), NULL);
        iou_completion completion;
        CHECK(iou_execute(disk->handle, IOU_EXTENTS, 0, 0, DISK, extents, sizeof(extents), NULL, &completion) == 0);
    }
    return NULL;
}

static iou_handle *pack(iou_handle *disk, uint32_t bits) {
    static iou_extent extents[2 * DISK / SECTOR_SIZE];
    iou_completion completion;
    iou_handle *packed;
    const void *map;
    uint64_t map_bytes;
    CHECK(iou_execute(disk, IOU_EXTENTS, 0, 0, DISK, extents, sizeof(extents), NULL, &completion) == 0);
    CHECK(iou_packed_new(disk, DISK, bits, &packed) == 0);
    for (uint32_t i = 0; i < completion.count; i++) {
        uint8_t flags = (uint8_t)extents[i].flags;
        CHECK(iou_packed_tell(packed, &extents[i].end, &flags, 1) == 0);
    }
    CHECK(iou_packed_place(packed, &map, &map_bytes) == 0);
    return packed;
}

/* Tables stay as they are, data changes: the clusters of header and counts are compared. */
static void *pack_often(void *argument) {
    struct disk *disk = argument;
    static unsigned char whole[2 * DISK], part[2 * DISK];
    uint64_t random = 1;
    iou_info info;
    while (disk->writing) {
        uint32_t bits = 9 + (uint32_t)below(&random, 8);
        iou_handle *packed = pack(disk->handle, bits);
        iou_handle_info(packed, &info);
        CHECK(info.size <= sizeof(whole));
        run_on(packed, IOU_READ, 0, info.size, whole);
        uint64_t offset = below(&random, info.size), length = 1 + below(&random, info.size - offset);
        run_on(packed, IOU_READ, offset, length, part);
        for (uint64_t i = offset; i < offset + length && i < (UINT64_C(3) << bits); i++)
            CHECK(part[i - offset] == whole[i]);
        iou_packed_free(packed);
    }
    return NULL;
}

static void check_disk(const struct disk *disk) {
    unsigned char buffer[SECTOR_SIZE];
    for (uint64_t sector = 0; sector < DISK / SECTOR_SIZE; sector++) {
        run_on(disk->handle, IOU_READ, sector * SECTOR_SIZE, SECTOR_SIZE, buffer);
        for (unsigned i = 0; i < SECTOR_SIZE; i++)
            CHECK(buffer[i] == disk->content[sector]);
    }
}

static void write_disk(struct disk *disk, uint64_t seed) {
    pthread_t threads[DISK_WRITERS + 2];
    struct disk_writer writers[DISK_WRITERS];
    disk->writing = DISK_WRITERS;
    for (unsigned i = 0; i < DISK_WRITERS; i++) {
        writers[i] = (struct disk_writer){disk, i, seed + 2 * i};
        CHECK(pthread_create(&threads[i], NULL, write_sectors, &writers[i]) == 0);
    }
    CHECK(pthread_create(&threads[DISK_WRITERS], NULL, flush_often, disk) == 0);
    CHECK(pthread_create(&threads[DISK_WRITERS + 1], NULL, pack_often, disk) == 0);
    for (unsigned i = 0; i < DISK_WRITERS + 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    check_disk(disk);
    run_on(disk->handle, IOU_CLOSE, 0, 0, NULL);
}

void test_qcow2(uint64_t operations, uint64_t seed) {
    static struct disk disk;
    char path[4096];
    for (uint32_t bits = 9; bits <= 16; bits += bits == 9 ? 3 : 4) {
        iou_qcow2_options options = {.size = DISK + DISK / 8, .cluster_bits = bits};
        file_path(path, sizeof(path), "qcow2", bits);
        make_file(path, 0);
        CHECK(iou_create_qcow2(path, &options) == 0);
        disk = (struct disk){.operations = operations / DISK_WRITERS / 6};
        for (unsigned round = 0; round < 2; round++) {
            disk.handle = open_disk(path);
            write_disk(&disk, seed + round);
        }
    }
    printf("qcow2: %u operations\n", (unsigned)operations);
}
