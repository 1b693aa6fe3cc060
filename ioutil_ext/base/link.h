/* SPDX-License-Identifier: Apache-2.0 */

/* Circular lists. Each element has a struct link as a member. */

#ifndef IOUTIL_BASE_LINK_H
#define IOUTIL_BASE_LINK_H

#include <stdbool.h>
#include <stddef.h>

/* A node of a list, or the list itself. An unlinked node points to itself. */
struct link {
    struct link *prev, *next;
};

/* The value of a list or a node with this name at its beginning. */
#define LINK_EMPTY(name) {&(name), &(name)}

static inline void link_init(struct link *node) {
    node->prev = node->next = node;
}

static inline bool link_empty(const struct link *node) {
    return node->next == node;
}

static inline void link_append(struct link *list, struct link *node) {
    node->prev = list->prev;
    node->next = list;
    list->prev->next = node;
    list->prev = node;
}

static inline void link_remove(struct link *node) {
    node->prev->next = node->next;
    node->next->prev = node->prev;
    link_init(node);
}

/* Remove the first node and return it. The list must not be empty. */
static inline struct link *link_take(struct link *list) {
    struct link *node = list->next;
    link_remove(node);
    return node;
}

/* Move all nodes to another list, which is not initialized yet. */
static inline void link_move(struct link *from, struct link *to) {
    link_init(to);
    if (link_empty(from))
        return;
    *to = *from;
    to->next->prev = to->prev->next = to;
    link_init(from);
}

#define container_of(node, type, member) ((type *)(void *)((char *)(node) - offsetof(type, member)))

#endif
