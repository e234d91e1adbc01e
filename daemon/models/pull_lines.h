#pragma once

/*
 * pull_lines - the output of `weftctl pull --json`, a JSON object on each line, which is not
 * trusted more than the hub. The bytes come in pieces of any size.
 */

#include <stdbool.h>
#include "base/buf.h"

#define PULL_LINE_MAX (64u << 10) /* bytes of a line */

/* Zeroed except for `report` and `ctx` at the start. */
struct pull_lines {
    /* Gets each line that is an object without a member "error"; it has no line feed. May be
     * NULL. */
    void (*report)(void *ctx, const char *text, size_t len);
    void *ctx;
    char error[300]; /* last error that a line reported; "": none */
    bool failed;
    struct buf line;
};

/* Takes the next @len bytes of the output. Returns 0, or -errno: a line has no end, or there is no
 * memory. Ignores all further bytes then. */
int pull_lines_add(struct pull_lines *p, const char *data, size_t len);
void pull_lines_deinit(struct pull_lines *p);
