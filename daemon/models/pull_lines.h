#pragma once

/*
 * pull_lines - reads the output of `weftctl pull --json`, a JSON object on each line, which is
 * trusted no more than the hub. The bytes arrive in pieces of any size.
 */

#include <stdbool.h>

#include "base/buf.h"

#define PULL_LINE_MAX (64u << 10) /* most bytes of a line */

/* State of the reader; at the start zeroed except for `report` and `ctx`. */
struct pull_lines {
    /* Takes each line that is an object without a member "error", without its line feed. May be
     * NULL. */
    void (*report)(void *ctx, const char *text, size_t len);
    void *ctx;
    /* last error that a line reported; "": none */
    char error[300];
    bool failed;
    struct buf line;
};

/* Takes the next @len bytes of the output. Returns 0, or -errno if a line is too long or memory is
 * short, and then ignores all further bytes. */
int pull_lines_add(struct pull_lines *p, const char *data, size_t len);
void pull_lines_deinit(struct pull_lines *p);
