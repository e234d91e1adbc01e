#include "tests/sim/replay_flight.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/flight_read.h"
#include "tests/support/plan_again.h"

/* A switch without a default, so that the compiler names a verdict that has no word here. */
static const char *verdict(enum plan_verdict v) {
    switch (v) {
    case PLAN_UNSEEN:
        return "queued";
    case PLAN_RUN:
        return "runs";
    case PLAN_LAST:
        return "last";
    case PLAN_FOLLOW:
        return "follow";
    case PLAN_WAIT_TIME:
        return "time";
    case PLAN_WAIT_ROWS:
        return "rows";
    case PLAN_WAIT_PAGES:
        return "pages";
    case PLAN_WAIT_SEQS:
        return "seqs";
    case PLAN_WAIT_TURN:
        return "turn";
    case PLAN_WAIT_ALONE:
        return "alone";
    case PLAN_PREEMPT:
        return "preempted";
    case PLAN_WAIT_PICTURE:
        return "picture";
    case PLAN_WAIT_SHARE:
        return "share";
    }
    return "?";
}

static void fclosep(FILE **f) {
    if (*f)
        fclose(*f);
}

static int read_file(const char *path, struct buf *out) {
    CLEANUP(fclosep) FILE *f = fopen(path, "re");
    char part[65536];
    size_t n;
    int e = 0;

    if (!f)
        return -errno;
    while (e == 0 && (n = fread(part, 1, sizeof(part), f)) > 0)
        e = buf_add(out, part, n);
    return e < 0 ? e : ferror(f) ? -EIO : 0;
}

bool replay_flight_is(const char *path) {
    CLEANUP(fclosep) FILE *f = fopen(path, "re");
    char begin[8];

    return f && fread(begin, 1, sizeof(begin), f) == sizeof(begin) &&
           flight_file_is(begin, sizeof(begin));
}

/* Returns the record of the step that followed the plan; NULL: there is none. */
static const struct flight_step *step_of(const struct flight_file *f, const struct plan_again *a) {
    for (uint32_t i = 0; i < f->n_steps; i++)
        if (f->step[i].step == a->step && f->step[i].at_ns >= a->at_ns)
            return &f->step[i];
    return NULL;
}

static void tell_requests(const struct flight_opts *o, const struct plan_again *a) {
    for (uint32_t i = 0; i < a->plan.n_running + a->plan.n_waiting; i++) {
        const struct plan_req *now = &a->plan.req[i], *was = &a->was.req[i];

        if (o->request >= 0 && a->id[i] != (uint64_t)o->request)
            continue;
        printf("    request %-6llu %s %6u of %6u tokens, %4u pages, %s%s",
               (unsigned long long)a->id[i], i < a->plan.n_running ? "runs " : "waits",
               was->n_computed, was->n_tokens, was->n_pages, verdict(was->verdict),
               was->admitted ? ", admitted" : "");
        if (a->plan.n_groups > 1)
            printf(", turn %u", was->group);
        if (was->over)
            printf(", over its part");
        if (was->leave_seqs > 0)
            printf(", leaves %u slots", was->leave_seqs);
        if (was->victim)
            printf(", victim");
        if (was->n_rows > 0)
            printf(", %u rows", was->n_rows);
        if (was->n_draft > 0)
            printf(" (%u drafted)", was->n_draft);
        if (now->verdict != was->verdict || now->n_rows != was->n_rows ||
            now->admitted != was->admitted)
            printf("   AGAIN: %s%s, %u rows", verdict(now->verdict),
                   now->admitted ? ", admitted" : "", now->n_rows);
        putchar('\n');
    }
}

static bool is_about(const struct flight_opts *o, const struct plan_again *a) {
    bool found = o->request < 0;

    for (uint32_t i = 0; i < a->plan.n_running + a->plan.n_waiting && !found; i++)
        found = a->id[i] == (uint64_t)o->request;
    return found && (o->step < 0 || a->step == (uint64_t)o->step);
}

static void tell_plan(const struct flight_opts *o, const struct flight_file *f,
                      const struct plan_again *a, const char *differs) {
    const struct flight_step *step = step_of(f, a);
    const struct plan *was = &a->was;

    printf("%9.3f s ago  step %llu: %u run, %u wait, %u pages left; %u rows, %u drafted, %u "
           "admitted, %u preempted; %.2f ms expected",
           (double)(f->at_ns - a->at_ns) / 1e9, (unsigned long long)a->step, was->n_running,
           was->n_waiting, was->n_left, was->n_rows, was->n_drafts, was->n_admitted,
           was->n_preempted, (double)was->expect_ns / 1e6);
    if (step && was->n_rows > 0)
        printf(", took %.2f", step->took_us / 1e3);
    if (o->verbose)
        printf("; one row takes %.2f ms, one more %.2f",
               (double)cost_expect_ns(&a->cost, &(struct cost_shape){.rows = 1, .seqs = 1}) / 1e6,
               (double)cost_row_ns(&a->cost) / 1e6);
    printf("%s%s\n", differs ? "   DIFFERS: " : "", differs ? differs : "");
    if (o->verbose || o->request >= 0 || differs)
        tell_requests(o, a);
}

int replay_flight(const struct flight_opts *o) {
    CLEANUP(buf_deinit) struct buf data = {.max = FLIGHT_FILE_MAX};
    struct flight_file f;
    const void *record;
    uint32_t len, n = 0, n_differ = 0, n_damaged = 0;
    size_t at = 0;

    int e = read_file(o->path, &data);
    if (e == 0)
        e = flight_file_parse(&f, data.data, data.len);
    if (e < 0) {
        fprintf(stderr, "weft-sim: %s: %s\n", o->path,
                e == -EINVAL ? "damaged, or of another version of weft" : strerror(-e));
        return 2;
    }
    while ((record = flight_file_next(&f, &at, &len)) != NULL) {
        struct plan_again a;

        if (plan_again_read(&a, record, len) < 0) {
            n_damaged++;
            continue;
        }
        const char *differs = plan_again(&a);
        n++;
        n_differ += differs != NULL;
        if (is_about(o, &a))
            tell_plan(o, &f, &a, differs);
        plan_again_deinit(&a);
    }
    printf("weft %s: %u plans computed again, %u differ; %u steps, %u decisions", f.version, n,
           n_differ, f.n_steps, f.n_records);
    if (n_damaged > 0)
        printf("; %u records are damaged or of another version", n_damaged);
    putchar('\n');
    return n == 0 ? 2 : n_differ + n_damaged > 0;
}
