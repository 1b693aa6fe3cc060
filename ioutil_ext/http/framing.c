/* SPDX-License-Identifier: Apache-2.0 */

/* Heads for Python: the length of a message, and whether another one may follow. */

#include "http/plain.h"

/*
 * Whether another request may follow. A chunked message, or one with Upgrade, is the last one of its connection: if a
 * proxy finds another end of the message, it finds no request behind it.
 */
static bool keeps_alive(const struct http_head *head) {
    if (head->chunked || http_has(head, HTTP_UPGRADE) || head->options & HTTP_CLOSE)
        return false;
    return head->minor == 1 || head->options & HTTP_KEEP_ALIVE;
}

int iou_head_read(const void *data, uint64_t length, uint64_t searched, iou_head *said) {
    struct http_head head;
    struct http_plain plain;
    const char *text = data;
    iou_head_result result = http_read_head((struct http_text){text, text + length}, searched, &head);
    *said = (iou_head){.field = head.twice};
    if (result != IOU_HEAD_WHOLE)
        return (int)result;
    said->size = head.size;
    said->method_length = (uint32_t)(head.method.end - head.method.at);
    said->target_length = (uint32_t)(head.target.end - head.target.at);
    said->minor = head.minor;
    said->asks = head.asks;
    said->length = head.length;
    said->flags = (head.chunked ? IOU_HEAD_CHUNKED : 0u) | (keeps_alive(&head) ? IOU_HEAD_KEEP_ALIVE : 0u) |
                  (http_read_plain(&head, &plain) ? IOU_HEAD_PLAIN : 0u);
    return IOU_HEAD_WHOLE;
}
