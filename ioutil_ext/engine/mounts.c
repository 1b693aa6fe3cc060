/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The devices of paths, from /proc/self/mountinfo (proc(5)), without access to the paths. A symbolic link is not
 * followed, because that may block: its open counts for the file system that has the link.
 */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "engine/engine.h"

static bool is_octal(char c) {
    return c >= '0' && c <= '7';
}

/* Blank, tab, newline and backslash are written as \ and three octal digits. */
static void unescape(char *text) {
    char *out = text;
    for (char *in = text; *in; out++) {
        if (in[0] == '\\' && is_octal(in[1]) && is_octal(in[2]) && is_octal(in[3])) {
            *out = (char)((in[1] - '0') * 64 + (in[2] - '0') * 8 + (in[3] - '0'));
            in += 4;
        } else {
            *out = *in++;
        }
    }
    *out = '\0';
}

static bool lies_below(const char *path, const char *mount, size_t length) {
    if (length == 1) /* the root */
        return true;
    return strncmp(path, mount, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* The last of several mounts on one directory is the visible one. */
static void compare_mount(struct mounted *paths, uint32_t count, const char *mount, uint64_t device) {
    size_t length = strlen(mount);
    for (struct mounted *each = paths; each < paths + count; each++) {
        if (length < each->length || !lies_below(each->path, mount, length))
            continue;
        each->length = length;
        each->device = device;
    }
}

void mount_find(struct mounted *paths, uint32_t count) {
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t size = 0;
    while (file && getline(&line, &size, file) != -1) {
        unsigned major, minor;
        int start = 0, end = 0;
        if (sscanf(line, "%*u %*u %u:%u %*s %n%*s%n", &major, &minor, &start, &end) != 2 || end <= start)
            continue;
        line[end] = '\0';
        unescape(line + start);
        compare_mount(paths, count, line + start, makedev(major, minor));
    }
    free(line);
    if (file)
        fclose(file);
}
