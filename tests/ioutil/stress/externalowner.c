/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Somebody who has an image and is hostile: slow, fails, dies now and then, ends what was canceled late or as if
 * nothing had been, and ends in any order. What he was lent is poisoned while he has it: the address sanitizer finds a
 * lane that touches it meanwhile.
 */

#include <poll.h>

#include "stress.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#define HELD 300u /* more than all threads of the lanes */

struct held {
    iou_errand errand; /* id: 0: none */
    uint64_t due, sum;
    bool canceled;
};

static struct {
    iou_handle *handle;
    char *content;
    uint64_t size, random;
    struct held held[HELD];
    uint64_t taken, canceled, failed, deaths;
    bool works; /* nothing fails */
    atomic_bool ends;
    pthread_t thread;
} *owner;

static uint64_t sum_of(const iou_errand *errand) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < errand->memory_length; i += 97)
        sum = 31 * sum + ((const unsigned char *)errand->memory)[i];
    return sum;
}

static void hide(const iou_errand *errand, bool hidden) {
    if (hidden)
        ASAN_POISON_MEMORY_REGION(errand->memory, errand->memory_length);
    else
        ASAN_UNPOISON_MEMORY_REGION(errand->memory, errand->memory_length);
}

static uint64_t choose_due(void) {
    uint64_t now = now_ns();
    switch (below(&owner->random, 20)) {
    case 0:
        return now + below(&owner->random, 30000000);
    case 1:
    case 2:
    case 3:
    case 4:
        return now + below(&owner->random, 2000000);
    default:
        return now;
    }
}

static void hold(const iou_errand *errand) {
    unsigned place = 0;
    while (owner->held[place].errand.id)
        CHECK(++place < HELD);
    CHECK(errand->control && errand->offset + errand->length <= owner->size);
    if (errand->kind == IOU_READ || errand->kind == IOU_WRITE)
        CHECK(errand->memory_length == errand->length);
    owner->held[place] = (struct held){.errand = *errand, .due = choose_due()};
    if (errand->kind == IOU_WRITE)
        owner->held[place].sum = sum_of(errand);
    hide(errand, true);
    owner->taken++;
}

static void note_canceled(uint64_t id) {
    for (unsigned i = 0; i < HELD; i++)
        if (owner->held[i].errand.id == id) {
            CHECK(!owner->held[i].canceled);
            owner->held[i].canceled = true;
            owner->canceled++;
            return;
        }
    CHECK(!"canceled: not one of ours");
}

static void do_errand(const struct held *held, iou_completion *completion) {
    const iou_errand *errand = &held->errand;
    switch (errand->kind) {
    case IOU_WRITE:
        CHECK(sum_of(errand) == held->sum);
        memcpy(owner->content + errand->offset, errand->memory, errand->length);
        break;
    case IOU_READ:
        memcpy(errand->memory, owner->content + errand->offset, errand->length);
        break;
    case IOU_ZERO:
        memset(owner->content + errand->offset, 0, errand->length);
        completion->method = IOU_METHOD_REMOTE;
        break;
    case IOU_EXTENTS:
        *(iou_extent *)errand->memory = (iou_extent){.start = errand->offset, .length = errand->length};
        completion->count = 1;
        break;
    default:
        CHECK(errand->kind == IOU_TRIM || errand->kind == IOU_FLUSH);
    }
}

static void end(struct held *held, bool dies) {
    iou_completion completion = {.cookie = held->errand.id, .syscall = IOU_SYS_EXTERNAL};
    hide(&held->errand, false);
    if (held->canceled && below(&owner->random, 2)) {
        completion.error = ECANCELED;
        completion.syscall = IOU_SYS_NONE;
    } else if (held->errand.flags & IOU_FAST_ONLY && held->errand.kind == IOU_ZERO) {
        completion.error = ENOTSUP;
        completion.syscall = IOU_SYS_NONE;
    } else if (dies || (!owner->works && below(&owner->random, 1000) == 0)) {
        completion.error = EIO;
        owner->failed++;
    } else {
        do_errand(held, &completion);
    }
    held->errand.id = 0;
    CHECK(iou_external_end(owner->handle, &completion) == 0);
    CHECK(iou_external_end(owner->handle, &completion) == -ENOENT);
}

static void end_some(bool dies) {
    uint64_t now = now_ns();
    for (unsigned i = 0; i < HELD; i++) {
        struct held *held = &owner->held[(i * 7 + 5) % HELD];
        if (held->errand.id && (dies || held->due <= now))
            end(held, dies);
    }
}

static unsigned count_held(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < HELD; i++)
        count += owner->held[i].errand.id != 0;
    return count;
}

static void *own(void *argument) {
    (void)argument;
    struct pollfd polled = {.fd = iou_external_fd(owner->handle), .events = POLLIN};
    while (!owner->ends || count_held()) {
        iou_errand errands[16];
        poll(&polled, 1, 1);
        int count = iou_external_take(owner->handle, errands, 1 + (unsigned)below(&owner->random, 16));
        CHECK(count >= 0 && (!owner->ends || count <= 16));
        for (int i = 0; i < count; i++)
            if (errands[i].kind)
                hold(&errands[i]);
            else
                note_canceled(errands[i].id);
        bool dies = !owner->works && below(&owner->random, 3000) == 0;
        owner->deaths += dies;
        end_some(dies);
    }
    return NULL;
}

iou_handle *owner_start(char *content, uint64_t size, uint64_t seed, bool works) {
    iou_external_options options = {
        .name = "external", .device = UINT64_C(1) << 63 | 5, .size = size, .piece = IOU_EXTERNAL_PIECE, .ahead = 3};
    owner = calloc(1, sizeof(*owner));
    CHECK(owner);
    owner->content = content;
    owner->size = size;
    owner->random = seed | 1;
    owner->works = works;
    CHECK(iou_external_new(&options, &owner->handle) == 0);
    CHECK(pthread_create(&owner->thread, NULL, own, NULL) == 0);
    return owner->handle;
}

void owner_stop(void) {
    owner->ends = true;
    CHECK(pthread_join(owner->thread, NULL) == 0);
    CHECK(iou_external_close(owner->handle) == 0);
    CHECK(iou_external_free(owner->handle) == 0);
    printf("external: %llu errands, %llu canceled, %llu failed, %llu deaths\n", (unsigned long long)owner->taken,
           (unsigned long long)owner->canceled, (unsigned long long)owner->failed, (unsigned long long)owner->deaths);
    free(owner);
}
