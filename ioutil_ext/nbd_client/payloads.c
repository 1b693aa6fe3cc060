/* SPDX-License-Identifier: Apache-2.0 */

/* The ends of payloads and of replies, and where the data of a READ goes to. */

#include "nbd_client/replies.h"

/* Bytes to receive behind data that is longer than the staging: probably a head with more data behind it. Data that
   arrives with the head has to be copied, so the read is short. */
#define GLANCE 512u

const char *replies_request_ended(struct replies *replies) {
    struct nbd_request *request = replies->request;
    replies->request = NULL;
    if (!request_is_complete(request))
        return "a reply without all data";
    return replies->requests->ended(replies->requests, request);
}

const char *replies_payload_ended(struct replies *replies) {
    replies->expected = REPLY_HEAD;
    return replies->done ? replies_request_ended(replies) : NULL;
}

const char *replies_data(struct replies *replies, uint64_t offset, uint64_t length) {
    const char *why;
    replies->place = request_place(replies->request, offset, length, &why);
    replies->left = length;
    replies->expected = REPLY_DATA;
    replies->window = length >= STAGING ? GLANCE : (uint32_t)STAGING;
    return replies->place ? NULL : why;
}
