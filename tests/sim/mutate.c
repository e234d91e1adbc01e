#include "tests/sim/mutate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mutants/mutants.h"
#include "tests/sim/run.h"

#define RUNS_MAX 1000u
#define SEEDS 1000000u /* seeds of a run, more than it can use */
/* steps of a seed: many bugs need several features, and each seed draws others */
#define STEPS 500u
#define HANG_S 5u
#define KIN 1000u /* number of seeds with the features of a known one */

/* Bugs that only the pager's own tests can find: in calls that the scheduler never or very rarely
 * makes, or that only make it slower. */
static const char *const not_here[] = {
    "kv_full_halfway",        "kv_length_stays",          "kv_lru_backwards",
    "kv_published_stays",     "kv_passing_used",          "kv_passing_stays",
    "kv_peer_passing",        "kv_window_ended_first",    "kv_window_not_wanted",
    "kv_window_full_halfway", "kv_window_place_not_kept", "kv_snapshot_held_given",
    "picture_disk_content",   "picture_disk_digest"};

/* Writes the message that reported the bug, in a few words, to @out. */
static void cause_of(const char *says, char *out, size_t size) {
    const char *at;
    char word[64];
    int n;

    if (sscanf(says, "invariant %d %63s broken", &n, word) == 2)
        snprintf(out, size, "%d %s", n, word);
    else if (sscanf(says, "kv_pager_check: invariant %d", &n) == 1)
        snprintf(out, size, "pager %d", n);
    else if (strncmp(says, "telltale: ", 10) == 0)
        snprintf(out, size, "tell-tale: %s",
                 strstr(says, "the block's")      ? "BLOCK"
                 : strstr(says, "reads position") ? "READ"
                 : strstr(says, "page")           ? "WRITERS"
                 : strstr(says, "changed")        ? "UNCHANGED"
                                                  : "BATCH");
    else if ((at = strstr(says, "Assertion")) != NULL && (at = strstr(says, ".c:")) != NULL) {
        const char *from = at;

        while (from > says && from[-1] != '/')
            from--;
        snprintf(out, size, "assert in %.*s.c", (int)(at - from), from);
    } else
        snprintf(out, size, "%s",
                 strncmp(says, "it does not end", 15) == 0 ? "does not end" : "crash");
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Returns the most frequent cause. */
static const char *usual(char cause[][80], uint32_t n) {
    uint32_t best = 0, most = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t same = 0;

        for (uint32_t k = 0; k < n; k++)
            same += strcmp(cause[i], cause[k]) == 0;
        if (same > most)
            most = same, best = i;
    }
    return n > 0 ? cause[best] : "-";
}

/* Returns the seed that the file at @path has for bug @name, or 0. */
static uint64_t known_seed(const char *path, const char *name) {
    FILE *file = path ? fopen(path, "re") : NULL;
    unsigned long long seed, found = 0;
    char at[80];

    while (file && fscanf(file, "%79s %llu", at, &seed) == 2)
        if (strcmp(at, name) == 0)
            found = seed;
    if (file)
        fclose(file);
    return found;
}

/* Returns true if run @r of @o failed, and its seed passes without the bug @m: a seed that fails
 * anyway finds nothing. */
static bool mutate_finds(const struct mutant *m, const struct run_opts *o,
                         const struct run_result *r) {
    static struct swarm_case c;
    char says[1024];
    uint64_t at;

    if (!r->failed)
        return false;
    c = o->base;
    c.seed = r->seed;
    *m->on = 0;
    bool fails = run_fails(&c, says, sizeof(says), &at);
    *m->on = 1;
    return !fails;
}

/* Tries the known seed @seed, then the machine that it draws with the requests of other seeds: when
 * the scheduler changes, a known seed may not find its bug any more, but the bug still needs the
 * same machine. Returns whether the bug was found; @out is the last run. */
static bool try_known(const struct mutant *m, const struct run_opts *like, uint64_t seed,
                      struct run_result *out) {
    static struct run_opts o;
    struct swarm_case of = {.seed = seed};

    o = *like;
    o.first = o.last = seed;
    run_processes(&o, 1, out);
    if (mutate_finds(m, &o, out))
        return true;
    swarm_draw(&o.base.set, &of);
    memset(o.base.is_set, true, sizeof(o.base.is_set));
    o.first = 1;
    o.last = KIN;
    run_processes(&o, 1, out);
    bool found = mutate_finds(m, &o, out);
    out->seed = seed; /* has the features of the known seed */
    return found;
}

static bool try_mutant(const struct mutate_opts *o, const struct mutant *m) {
    static struct run_opts run[RUNS_MAX];
    static struct run_result result[RUNS_MAX];
    static char cause[RUNS_MAX][80];
    uint64_t steps[RUNS_MAX];
    uint32_t n = MIN(o->n_runs, RUNS_MAX), n_found = 0, missed = 0;

    for (uint32_t i = 0; i < n; i++)
        run[i] = (struct run_opts){.first = 1 + (uint64_t)i * SEEDS,
                                   .last = (uint64_t)(i + 1) * SEEDS,
                                   .base.n_steps = STEPS,
                                   .base.recorder = strncmp(m->name, "record_", 7) == 0,
                                   .max_steps = o->max_steps,
                                   .hang_s = HANG_S};
    *m->on = 1;
    uint64_t known = n == 1 ? known_seed(o->try_first, m->name) : 0;
    if (!known || !try_known(m, &run[0], known, &result[0])) {
        for (uint32_t i = 0; i < n; i += o->n_processes)
            run_processes(run + i, MIN(o->n_processes, n - i), result + i);
        for (uint32_t i = 0; i < n; i++)
            result[i].failed = mutate_finds(m, &run[i], &result[i]);
    }
    *m->on = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!result[i].failed)
            continue;
        steps[n_found] = result[i].n_steps;
        cause_of(result[i].says, cause[n_found++], sizeof(cause[0]));
    }
    missed = n - n_found;
    qsort(steps, n_found, sizeof(*steps), by_value);
    printf("| %s | %s | %u/%u | %llu | %llu | %s |\n", m->name, m->text, n_found, n,
           (unsigned long long)(n_found > 0 ? steps[n_found / 2] : 0),
           (unsigned long long)(n_found > 0 ? steps[n_found - 1] : 0), usual(cause, n_found));
    if (o->try_first && n == 1 && n_found == 1)
        printf("# %s %llu\n", m->name, (unsigned long long)result[0].seed);
    fflush(stdout);
    return missed * 100 <= n * (100 - o->needed);
}

int mutate(const struct mutate_opts *o) {
    uint32_t n = 0, n_found = 0;

    puts("| bug | what is wrong | found | steps, median | most | by |\n|---|---|---|---|---|---|");
    for (uint32_t i = 0; i < n_mutants; i++) {
        bool here =
            mutants[i].kind == MUTANT_mutant && (!o->only || strcmp(o->only, mutants[i].name) == 0);

        for (uint32_t k = 0; k < ARRAY_SIZE(not_here); k++)
            here &= strcmp(not_here[k], mutants[i].name) != 0;
        if (!here)
            continue;
        n++;
        n_found += try_mutant(o, &mutants[i]);
    }
    printf("\n%u of %u found in at least %u %% of their runs\n", n_found, n, o->needed);
    return n_found < n;
}
