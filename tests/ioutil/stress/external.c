/* SPDX-License-Identifier: Apache-2.0 */

/* Lanes of an image that somebody else has, who is hostile and stops while lanes are at work. */

#include "laneclient.h"

#define LANES 4
#define MEMORY (34 * MIB)
#define PER_IMAGE 40 /* connections */

static struct {
    struct session sessions[LANES];
    iou_engine *engine;
    iou_lanes *lanes;
    iou_handle *handle;
    char *content;
    uint64_t size, random;
} *stage;

/* ---- all -------------------------------------------------------------------------------------------------------- */

static void look_after(unsigned connections, enum ending most) {
    unsigned started = 0, alive;
    do {
        alive = 0;
        for (unsigned i = 0; i < LANES; i++) {
            struct session *session = &stage->sessions[i];
            if (!session->lane && started < connections) {
                started++;
                session_start(session, stage->lanes, NULL,
                              most == STOP ? STOP : (enum ending)below(&stage->random, most));
            }
            if (session->lane)
                session_look_after(session);
            alive += session->lane != NULL;
        }
        if (most == STOP && started == connections)
            return;
        usleep(500);
    } while (alive || started < connections);
}

static void new_image(void) {
    stage->handle = owner_start(stage->content, stage->size, next_random(&stage->random), false);
    for (unsigned i = 0; i < LANES; i++)
        stage->sessions[i].external = stage->handle;
}

/* It stops while lanes are at work: what was not taken ends, and what comes. */
static void stop_image(void) {
    look_after(LANES, STOP);
    usleep((useconds_t)below(&stage->random, 30000));
    CHECK(iou_external_free(stage->handle) == -EBUSY);
    CHECK(iou_external_close(stage->handle) >= 0);
    look_after(0, ABORT);
    owner_stop();
}

static void check_content(const struct session *session) {
    for (unsigned i = 0; i < AREAS; i++) {
        const struct area *area = &session->client.areas[i];
        CHECK(area_holds(area, stage->content + area->offset));
    }
}

static void test_limits(void) {
    iou_completion completion;
    iou_external_options options = {.name = "x", .device = 1, .size = 10, .piece = IOU_EXTERNAL_PIECE, .ahead = 1};
    iou_handle *handle;
    char data[10];
    CHECK(iou_external_new(&options, &handle) == 0);
    CHECK(iou_execute(handle, IOU_READ, 0, 0, 10, data, 10, NULL, &completion) == -EINVAL);
    CHECK(iou_execute(handle, IOU_CLOSE, 0, 0, 0, NULL, 0, NULL, &completion) == -EINVAL);
    CHECK(iou_external_close(handle) == 0 && iou_external_free(handle) == 0);
    options.piece = MIB + MIB / 2;
    CHECK(iou_external_new(&options, &handle) == -EINVAL);
    options.piece = 2 * IOU_EXTERNAL_PIECE;
    CHECK(iou_external_new(&options, &handle) == -EINVAL);
    options.piece = IOU_EXTERNAL_PIECE;
    options.ahead = 0;
    CHECK(iou_external_new(&options, &handle) == -EINVAL);
}

void test_external(unsigned connections, uint64_t seed) {
    test_limits();
    stage = calloc(1, sizeof(*stage));
    CHECK(stage);
    stage->random = seed | 1;
    for (unsigned i = 0; i < LANES; i++) {
        struct session *session = &stage->sessions[i];
        session->random = (seed + 100 * i) | 1;
        stage->size = client_lay_out(&session->client, stage->size + 100, seed + 2 * i);
    }
    stage->content = calloc(1, stage->size);
    CHECK(stage->content && iou_engine_new(8, 50, &stage->engine) == 0);
    CHECK(iou_lanes_new(stage->engine, MEMORY, &stage->lanes) == 0);
    for (unsigned left = connections, count; left; left -= count) {
        count = (unsigned)min_u64(left, PER_IMAGE);
        new_image();
        look_after(count, STOP - 1);
        stop_image();
    }
    CHECK(stage->lanes->used == stage->lanes->kept_size && stage->lanes->threads == 0);
    CHECK(iou_lanes_free(stage->lanes) == 0);
    stop_engine(stage->engine);
    CHECK(iou_engine_free(stage->engine) == 0);
    for (unsigned i = 0; i < LANES; i++)
        check_content(&stage->sessions[i]);
    free(stage->content);
    free(stage);
}
