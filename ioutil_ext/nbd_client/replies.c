/* SPDX-License-Identifier: Apache-2.0 */

/* The parser of a server's bytes: memory for the next bytes, heads of replies, data of READs. */

#include <errno.h>
#include <stdlib.h>

#include "base/big_endian.h"
#include "base/numbers.h"
#include "nbd_client/replies.h"

int replies_init(struct replies *replies, struct requests *requests, const struct agreed *agreed) {
    *replies = (struct replies){.requests = requests, .agreed = agreed, .window = STAGING};
    replies->staging = malloc(STAGING);
    return replies->staging ? 0 : -ENOMEM;
}

void replies_free(struct replies *replies) {
    free(replies->staging);
    replies->staging = NULL;
}

/* ---- memory for the next bytes ---------------------------------------------------------------------------------- */

unsigned replies_space(struct replies *replies, struct iovec *parts) {
    unsigned count = 0;
    if (replies->expected == REPLY_DATA) /* nothing is staged then */
        parts[count++] = (struct iovec){replies->place, replies->left};
    parts[count++] = (struct iovec){replies->staging + replies->end, min_u64(replies->window, STAGING - replies->end)};
    return count;
}

static void move_to_front(struct replies *replies) {
    uint32_t left = replies->end - replies->start;
    if (left && replies->start)
        memmove(replies->staging, replies->staging + replies->start, left);
    replies->start = 0;
    replies->end = left;
}

/* ---- payloads --------------------------------------------------------------------------------------------------- */

/* Take data that is staged, or was received into its place. */
static const char *take_data(struct replies *replies, bool *more) {
    uint64_t count = min_u64(replies->left, replies->end - replies->start);
    memcpy(replies->place, replies->staging + replies->start, count);
    replies->start += (uint32_t)count;
    replies->place += count;
    replies->left -= count;
    *more = replies->left == 0;
    return *more ? replies_payload_ended(replies) : NULL;
}

/* ---- heads ------------------------------------------------------------------------------------------------------ */

static const char *find_cookie(struct replies *replies, uint64_t cookie) {
    replies->request = replies->requests->find(replies->requests, cookie);
    return replies->request ? NULL : "a reply to no request";
}

static const char *simple_reply(struct replies *replies, const char *head) {
    uint32_t error = get32(head + 4);
    const char *why = find_cookie(replies, get64(head + 8));
    if (why)
        return why;
    struct nbd_request *request = replies->request;
    replies->done = true;
    if (request->command == CMD_BLOCK_STATUS && !error)
        return "a status without extents";
    if (request->command == CMD_READ && replies->agreed->structured)
        return "a simple reply to a READ";
    if (error) {
        request_refused(request, error);
        replies->requests->refused(replies->requests, request, "", 0);
    } else if (request->command == CMD_READ) {
        return replies_data(replies, request->offset, request->length);
    }
    return replies_request_ended(replies);
}

static const char *chunk_head(struct replies *replies, const char *head) {
    bool extended = replies->agreed->extended;
    const char *why = find_cookie(replies, get64(head + 8));
    if (why)
        return why;
    if (extended && get64(head + 16) != replies->request->offset)
        return "a reply with the offset of another request";
    replies->done = get16(head + 4) & REPLY_FLAG_DONE;
    replies->type = get16(head + 6);
    replies->left = extended ? get64(head + 24) : get32(head + 16);
    return chunk_begin(replies);
}

/* Read the head of a reply from the staging. */
static const char *take_head(struct replies *replies, bool *more) {
    const struct agreed *agreed = replies->agreed;
    const char *head = replies->staging + replies->start;
    uint32_t staged = replies->end - replies->start, chunk = agreed->extended ? MAGIC_EXTENDED_CHUNK : MAGIC_CHUNK;
    *more = staged >= 4;
    if (!*more)
        return NULL;
    uint32_t magic = get32(head);
    bool is_simple = magic == MAGIC_SIMPLE_REPLY && !agreed->extended;
    if (!is_simple && !(magic == chunk && agreed->structured))
        return "a reply that begins with another number";
    uint32_t size = is_simple ? 16 : agreed->extended ? 32 : 20;
    *more = staged >= size;
    if (!*more)
        return NULL;
    replies->start += size;
    return is_simple ? simple_reply(replies, head) : chunk_head(replies, head);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

static const char *take_reply(struct replies *replies, bool *more) {
    switch (replies->expected) {
    case REPLY_HEAD:
        return take_head(replies, more);
    case REPLY_DATA:
        return take_data(replies, more);
    default:
        return chunk_take(replies, more);
    }
}

const char *replies_received(struct replies *replies, size_t count) {
    if (replies->expected == REPLY_DATA) {
        uint64_t placed = min_u64(count, replies->left);
        replies->place += placed;
        replies->left -= placed;
        count -= placed;
    }
    replies->end += (uint32_t)count;
    const char *why = NULL;
    for (bool more = true; more && !why;)
        why = take_reply(replies, &more);
    move_to_front(replies);
    return why;
}
