/* SPDX-License-Identifier: Apache-2.0 */

/* Lanes of an image that an NBD server has, which dies and lies, and is left while lanes are at work. */

#include "laneclient.h"
#include "nbdserver.h"

#define LANES 4
#define MEMORY (34 * MIB)
#define PER_IMAGE 40 /* connections */

static struct {
    struct session sessions[LANES];
    struct nbd_image image;
    iou_engine *engine;
    iou_lanes *lanes;
    uint64_t size, random;
} *stage;

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

static void new_image(bool hostile) {
    nbd_image_start(&stage->image, stage->size, hostile, next_random(&stage->random));
    for (unsigned i = 0; i < LANES; i++) {
        struct session *session = &stage->sessions[i];
        session->shared = stage->image.handle;
        session->client.remote = hostile;
        for (unsigned k = 0; k < AREAS; k++)
            session->client.areas[k].content = ZEROS;
    }
}

/* It is left while lanes are at work: what waits ends, and what comes. */
static void leave_image(void) {
    for (unsigned i = 0; i < LANES; i++)
        stage->sessions[i].client.remote = true;
    look_after(LANES, STOP);
    usleep((useconds_t)below(&stage->random, 30000));
    nbd_image_stop(&stage->image);
    usleep((useconds_t)below(&stage->random, 30000));
    for (unsigned i = 0; i < LANES; i++)
        if (stage->sessions[i].lane)
            iou_lane_refuse(stage->sessions[i].lane);
    look_after(0, ABORT);
}

void test_remote_lanes(unsigned connections, uint64_t seed) {
    uint64_t failed = 0;
    stage = calloc(1, sizeof(*stage));
    CHECK(stage);
    stage->random = seed | 1;
    for (unsigned i = 0; i < LANES; i++) {
        struct session *session = &stage->sessions[i];
        session->random = (seed + 100 * i) | 1;
        stage->size = client_lay_out(&session->client, stage->size + 100, seed + 2 * i);
    }
    CHECK(iou_engine_new(8, 50, &stage->engine) == 0);
    CHECK(iou_lanes_new(stage->engine, MEMORY, &stage->lanes) == 0);
    for (unsigned left = connections, count, i = 0; left; left -= count, i++) {
        count = (unsigned)min_u64(left, PER_IMAGE);
        new_image(i % 2);
        look_after(count, STOP - 1);
        leave_image();
    }
    CHECK(stage->lanes->pool.used == stage->lanes->pool.kept_size && stage->lanes->pool.tasks == 0);
    CHECK(iou_lanes_free(stage->lanes) == 0);
    stop_engine(stage->engine);
    CHECK(iou_engine_free(stage->engine) == 0);
    for (unsigned i = 0; i < LANES; i++)
        failed += stage->sessions[i].client.failed;
    printf("lanes on an nbd image: %u connections, %llu operations failed\n", connections, (unsigned long long)failed);
    free(stage);
}
