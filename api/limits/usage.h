#pragma once

/*
 * usage - what each key has used of each model since counting began, of this process and of those
 * before it: what the daemon counts is added to a file every few seconds and at the end, by a
 * thread (usage_file.h). A process that is killed loses what it counted since the last time.
 *
 * Quotas per day and month are held by these counts (usage_limit.h).
 */

#include <uv.h>
#include "api/limits/usage_table.h"

#define USAGE_WRITE_MS 5000

struct usage_opts {
    uv_loop_t *loop;
    const char *path;             /* NULL: counts end with the process */
    int64_t (*unix_s)(void *ctx); /* the time of day; NULL: the machine's */
    /* Tells that the file could not be read or written (@r < 0), or was damaged and put aside; once
     * for each trouble. */
    void (*trouble)(void *ctx, int r);
    void *ctx;
};

/* Invariant: `all` has the rows of `unsaved` and `writing`, and those of the file as it was when it
 * was last read. */
struct usage {
    struct usage_opts opts;
    struct usage_table all, unsaved, writing;
    struct usage_table read; /* the result of the thread */
    uv_timer_t tick;
    uv_work_t work;
    int result;
    bool is_writing, troubled, closed, damaged, open;
};

/* Reads the file. Returns 0, also without a file that can be read, or -ENOMEM. */
int usage_init(struct usage *u, const struct usage_opts *opts);
void usage_start(struct usage *u); /* opens the timer on the loop; before anything is counted */
/* Closes the timer, if it is open; what is counted from here on is written by usage_deinit(). */
void usage_close(struct usage *u);
/* Writes what is not yet in the file, in this thread. After usage_close() and the loop has run
 * out. Accepts a zeroed one. */
void usage_deinit(struct usage *u);

int64_t usage_now(const struct usage *u); /* the time of day, in seconds since 1970 */
/* Counts @sum of @model for @key ("": none) of @tenant. On the loop's thread. */
void usage_count(struct usage *u, const char *tenant, const char *key, const char *model,
                 const struct usage_sum *sum);
