#pragma once

/*
 * usage - counts the usage of each model by each key, in this process and earlier ones: a thread
 * adds the counts to a file every few seconds and at the end (usage_file.h). A process that is
 * killed loses the counts since the last write.
 *
 * Quotas per day and month are based on these counts (usage_limit.h).
 */

#include <uv.h>
#include "api/limits/usage_table.h"

#define USAGE_WRITE_MS 5000

struct usage_opts {
    uv_loop_t *loop;
    const char *path;             /* NULL: counts end with the process */
    int64_t (*unix_s)(void *ctx); /* the time of day; NULL: the machine's */
    /* Reports, once for each problem, that the file could not be read or written (@r < 0), or was
     * damaged and renamed. */
    void (*trouble)(void *ctx, int r);
    void *ctx;
};

/* Invariant: `all` has the rows of `unsaved` and `writing`, and the rows that the file had when it
 * was last read. */
struct usage {
    struct usage_opts opts;
    struct usage_table all, unsaved, writing;
    struct usage_table read; /* the result of the thread */
    uv_timer_t tick;
    uv_work_t work;
    int result;
    bool is_writing, troubled, closed, damaged, open;
    bool unread; /* the file could not be read at the start: `all` lacks what it has */
};

/* Reads the file. Returns 0, also without a file that can be read, or -ENOMEM. */
int usage_init(struct usage *u, const struct usage_opts *opts);
void usage_start(struct usage *u); /* opens the timer on the loop; before anything is counted */
/* Closes the timer, if it is open; usage_save() writes the counts that follow. */
void usage_close(struct usage *u);
/* Writes the remaining counts, in this thread. Called after usage_close(), when the loop has run
 * out. Returns 0 or -errno: counts are lost, and *@n_lost is their number of requests. */
int usage_save(struct usage *u, uint64_t *n_lost);
/* Drops what usage_save() has not written. Accepts a zeroed one. */
void usage_deinit(struct usage *u);

int64_t usage_now(const struct usage *u); /* the time of day, in seconds since 1970 */
/* Counts @sum of @model for @key ("": none) of @tenant. On the loop's thread. */
void usage_count(struct usage *u, const char *tenant, const char *key, const char *model,
                 const struct usage_sum *sum);
