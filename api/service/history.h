#pragma once

/*
 * history - samples of the daemon's rates in the last hour, one every few seconds, so that the
 * charts of the web page are not empty at a visit. Sums over all models and tenants.
 */

#include <stdint.h>

struct gen_env;
struct json;

#define HISTORY_MAX 720u
#define HISTORY_S 5

enum {
    /* tokens a second */
    HISTORY_OUTPUT,
    /* computed prompt tokens a second */
    HISTORY_PROMPT,
    HISTORY_RUNNING,
    HISTORY_WAITING,
    /* rows of the last step; 0 while nothing runs */
    HISTORY_ROWS,
    HISTORY_ROWS_OF_A_SAMPLE
};

/* The last HISTORY_MAX samples, in a ring; zeroed to begin with. */
struct history {
    /* [n % HISTORY_MAX] is the next */
    float sample[HISTORY_MAX][HISTORY_ROWS_OF_A_SAMPLE];
    uint64_t n;
    /* time of the last sample; 0: none yet */
    int64_t at_ns;
    uint64_t n_output, n_prompt;
};

/* Takes a sample at @now. The first call only begins the counting. */
void history_note(struct history *h, const struct gen_env *env, int64_t now);
/* Writes the samples, the oldest first: {"seconds", "output": [...], ...}. */
void history_put(const struct history *h, struct json *j);
