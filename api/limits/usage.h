#pragma once

/*
 * usage - counts the usage of each model by each key, in this process and earlier ones: the
 * thread of the state adds the counts to the database every few seconds and at the end
 * (usage_rows.h). A process that is killed loses the counts since the last write.
 *
 * Quotas per day and month are based on these counts (usage_limit.h).
 */

#include <uv.h>

#include "api/limits/usage_table.h"
#include "api/state/state.h"

#define USAGE_WRITE_MS 5000

struct usage_opts {
    uv_loop_t *loop;
    /* NULL: counts end with the process */
    struct state *state;
    /* file of an earlier version, which may be missing; or NULL */
    const char *import;
    /* the time of day; NULL: the machine's */
    int64_t (*unix_s)(void *ctx);
    /* Reports that the file of an earlier version could not be read (@r < 0, or -EINVAL: it is
     * damaged and was renamed). */
    void (*trouble)(void *ctx, int r);
    void *ctx;
};

/* Invariant: `all` has the rows of `unsaved` and `writing`, and the rows that the database had when
 * it was last read. */
struct usage {
    struct usage_opts opts;
    struct usage_table all, unsaved, writing;
    /* the result of the thread */
    struct usage_table read;
    uv_timer_t tick;
    struct state_job job;
    /* result of the import; the thread's */
    int imported;
    bool is_writing, closed, open;
    /* the file of an earlier version is still to be added */
    bool to_import;
    /* the database could not be read at the start: `all` lacks what it has */
    bool unread;
};

/* Reads the database, in this thread. Returns 0, also without one that can be read,
 * or -ENOMEM. */
int usage_init(struct usage *u, const struct usage_opts *opts);
void usage_start(struct usage *u); /* opens the timer on the loop; before anything is counted */
/* Closes the timer, if it is open; usage_save() writes the counts that follow. */
void usage_close(struct usage *u);
/* Writes the remaining counts, in this thread. Called after state_close(), when the loop has run
 * out. Returns 0 or -errno:
 * counts are lost, and *@n_lost is their number of requests. */
int usage_save(struct usage *u, uint64_t *n_lost);
/* Drops what usage_save() has not written. Accepts a zeroed one. */
void usage_deinit(struct usage *u);

int64_t usage_now(const struct usage *u); /* the time of day, in seconds since 1970 */
/* Counts @sum of @model for @key ("": none) of @tenant. On the loop's thread. */
void usage_count(struct usage *u, const char *tenant, const char *key, const char *model,
                 const struct usage_sum *sum);
