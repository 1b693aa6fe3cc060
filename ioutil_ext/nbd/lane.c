/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Lanes of NBD: the transmission phase of a connection. Many requests may run, and replies are sent in the order in
 * which requests end. The leader reads a request, makes another task the leader, and does the request.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nbd/nbd.h"

/* The limit on errors_count. Errnos have smaller numbers. */
#define MAX_ERRORS 4096u

/* Send the last reply of the negotiation. The first task calls this before it leads. */
static void nbd_begin(struct iou_lane *lane) {
    struct nbd *nbd = nbd_of(lane);
    socket_take_turn(lane); /* so that it does not go to the outbox */
    lane_send_one(lane, nbd->reply, nbd->reply_length);
    socket_give_turn(lane);
    lane->socket.sent = 0; /* only replies to requests count */
    free(nbd->reply);
    nbd->reply = NULL;
}

/* Wait for the limit on the rate. A WRITE has waited while its payload was received. A READ waits for the bytes of
   earlier requests, and then sends all of its data. If the wait ends because the transfer does, request_begin() refuses
   the request. */
static void await_request_rate(struct iou_lane *lane, const struct request *request) {
    uint16_t command = request->command;
    if (request->error || request->length == 0 || command == CMD_WRITE || command == CMD_FLUSH || command == CMD_CACHE)
        return;
    lane_take_rate(lane, command == CMD_READ ? request->length : IOU_BUCKET_SMALL);
}

/* Do a request; returns whether this task still leads. */
static bool do_request(struct task *task, struct request *request, struct payload *payload) {
    struct iou_lane *lane = task->lane;
    uint32_t told = 0;
    struct op op;
    request->told = &told;
    request_begin(lane, request, payload, &op);
    bool leads = !task_hand_over(task);
    lane->state.requests++;
    request_run(task, request, payload, &op);
    lane->counts.failed += told != 0;
    iou_record result = nbd_describe(request);
    result.result = told;
    work_record(lane, task->work, result);
    request_end(lane);
    return leads;
}

static bool nbd_lead(struct task *task) {
    struct iou_lane *lane = task->lane;
    struct request request;
    struct payload payload;
    if (nbd_of(lane)->reply)
        nbd_begin(lane);
    do {
        if (!receive_request(task, &request, &payload))
            return false;
        await_request_rate(lane, &request);
    } while (do_request(task, &request, &payload));
    return true;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

static void free_nbd(struct nbd *nbd) {
    free(nbd->errors);
    free(nbd->reply);
    free(nbd);
}

static void nbd_end(struct iou_lane *lane) {
    receive_end(lane);
    free_nbd(nbd_of(lane));
}

static struct nbd *new_nbd(const iou_nbd_options *options) {
    uint32_t flags = options->lane.flags;
    struct nbd *nbd = calloc(1, sizeof(*nbd));
    if (!nbd)
        return NULL;
    nbd->dialect = (struct dialect){
        .size = options->lane.size,
        .flags = flags,
        .header_size = flags & IOU_LANE_EXTENDED ? 32 : 28,
    };
    nbd->contexts_count = options->contexts_count;
    for (uint32_t i = 0; i < options->contexts_count; i++) {
        nbd->contexts[i] = options->contexts[i];
        nbd->tells |= options->contexts[i].tells;
    }
    nbd->errors_count = options->errors_count;
    nbd->errors = calloc(options->errors_count + 1, sizeof(*nbd->errors));
    nbd->reply_length = options->reply_length;
    nbd->reply = calloc(1, options->reply_length + 1);
    if (!nbd->errors || !nbd->reply) {
        free_nbd(nbd);
        return NULL;
    }
    if (options->errors_count)
        memcpy(nbd->errors, options->errors, options->errors_count * sizeof(*nbd->errors));
    if (options->reply_length)
        memcpy(nbd->reply, options->reply, options->reply_length);
    return nbd;
}

/* Whether the contexts are valid. BLOCK_STATUS needs at least one, and replies in chunks. */
static bool has_contexts(const iou_nbd_options *options) {
    const struct dialect dialect = {.flags = options->lane.flags};
    bool wanted = dialect.flags & IOU_LANE_STATUS, told = options->contexts_count && wire_has_chunks(&dialect);
    return options->contexts_count <= IOU_LANE_CONTEXTS && (told || !wanted);
}

static struct lane_work *nbd_work_of(struct task *task) {
    return &task->own;
}

int iou_nbd_start(iou_lanes *lanes, iou_handle *handle, const iou_nbd_options *options, iou_lane **result) {
    static const struct lane_kind NBD = {
        .thread_name = "nbd-lane", .lead = nbd_lead, .work = nbd_work_of, .end = nbd_end};
    if (lanes_are_foreign(lanes))
        return -ECHILD;
    if (options->reply_length > LANE_STAGING || options->errors_count > MAX_ERRORS || !has_contexts(options))
        return -EINVAL;
    struct nbd *nbd = new_nbd(options);
    if (!nbd)
        return -ENOMEM;
    int error = lane_start(lanes, handle, &options->lane, &NBD, nbd, result);
    if (error)
        free_nbd(nbd);
    return error;
}
