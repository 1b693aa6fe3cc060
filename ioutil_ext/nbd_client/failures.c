/* SPDX-License-Identifier: Apache-2.0 */

/* Why operations have failed: numbers go with completions, and Python asks for the words by number. */

#include <errno.h>
#include <string.h>

#include "base/numbers.h"
#include "nbd_client/client.h"

static void copy_text(char *to, const char *text, size_t length) {
    length = min_u64(length, IOU_NBD_TEXT - 1);
    memcpy(to, text, length);
    to[length] = 0;
}

uint64_t failure_add(struct client *client, uint32_t kind, const struct nbd_request *request, int error,
                     const char *text, size_t length) {
    uint64_t number = ++client->failures_count;
    iou_nbd_failure *failure = &client->failures[number % MOST_FAILURES];
    *failure = (iou_nbd_failure){.number = number, .kind = kind, .error = error};
    if (request) {
        failure->command = request->command;
        failure->offset = request->offset;
        failure->length = request->length;
    }
    copy_text(failure->text, text, length);
    return number;
}

uint64_t failure_gone(struct client *client, const char *text) {
    return failure_add(client, IOU_NBD_GONE, NULL, ENOTCONN, text, strlen(text));
}

const iou_nbd_failure *failure_find(const struct client *client, uint64_t number) {
    const iou_nbd_failure *kept[] = {&client->flush_failure, &client->unusable,
                                     &client->failures[number % MOST_FAILURES]};
    for (size_t i = 0; number && i < LENGTH(kept); i++)
        if (kept[i]->number == number)
            return kept[i];
    return NULL;
}

int iou_nbd_client_failure(iou_handle *handle, uint64_t number, iou_nbd_failure *failure) {
    struct client *client = client_of(handle);
    if (handle_is_foreign(handle))
        return -ECHILD;
    pthread_mutex_lock(&client->lock);
    const iou_nbd_failure *found = failure_find(client, number);
    if (found)
        *failure = *found;
    pthread_mutex_unlock(&client->lock);
    return found ? 0 : -ENOENT;
}
