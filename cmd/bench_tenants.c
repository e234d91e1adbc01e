#include "cmd/bench_tenants.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <yyjson.h>

#include "base/try.h"
#include "cmd/bench_json.h"

#define WANTING                                                                                    \
    0.9 /* share of the time with a waiting turn from which on a tenant could use more */

static void free_tenant(struct tenant *t) {
    samples_deinit(&t->ttft);
    samples_deinit(&t->itl);
    samples_deinit(&t->worst);
    samples_deinit(&t->job);
    samples_deinit(&t->refusal);
    free(t->wait.v);
    free(t->gap.v);
}

void bench_tenants_deinit(struct bench_tenants *r) {
    for (uint32_t i = 0; i < TENANTS; i++)
        free_tenant(&r->tenant[i]);
    *r = (struct bench_tenants){0};
}

/* Adds a span. Returns 0 or -ENOMEM. */
static int add_span(struct spans *s, int64_t from_ns, int64_t to_ns) {
    assert(from_ns <= to_ns && s->n <= s->cap);
    if (!ARRAY_GROW(s->v, s->n, s->cap, 64))
        return -ENOMEM;
    s->v[s->n++] = (struct span){from_ns, to_ns};
    return 0;
}

/* Adds the time from @from_ns to @to_ns in which a turn waited for its first token. Returns 0 or
 * -ENOMEM. */
static int add_wait(struct tenant *t, int64_t from_ns, int64_t to_ns) {
    TRY(add_span(&t->wait, from_ns, to_ns));
    return samples_add(&t->ttft, (double)(to_ns - from_ns) * 1e-9);
}

/* Adds the waiting time and the gaps of a turn that got at least one token. Returns 0 or
 * -ENOMEM. */
static int add_stream(struct tenant *t, const struct bench_request *q, int64_t due_ns) {
    int64_t at_ns = q->first_ns;
    double worst = 0;

    assert(at_ns > 0);
    TRY(add_wait(t, due_ns, q->first_ns));
    for (size_t i = 0; i < q->gaps.n; i++) {
        double gap_s = q->gaps.v[i];
        int64_t from_ns = at_ns;

        at_ns += (int64_t)(gap_s * 1e9);
        worst = MAX(worst, gap_s);
        TRY(samples_add(&t->itl, gap_s));
        TRY(add_span(&t->gap, from_ns, at_ns));
    }
    if (!q->gaps.n)
        return 0;
    return samples_add(&t->worst, worst);
}

int bench_tenants_finished(struct bench_tenants *r, struct tenant *t, const struct bench_request *q,
                           uint32_t n_output) {
    int64_t n_out = q->output_tokens < 0 ? (int64_t)q->n_pieces : q->output_tokens;

    assert(q->outcome == OUTCOME_OK && t->n_finished < t->n_turns);
    r->end_ns = MAX(r->end_ns, q->end_ns);
    t->n_finished++;
    t->n_short += n_out < n_output;
    t->n_prompt += (uint64_t)MAX(q->prompt_tokens, (int64_t)0);
    t->n_cached += (uint64_t)MAX(q->cached_tokens, (int64_t)0);
    t->n_out += (uint64_t)n_out;
    t->n_received += q->n_pieces;
    if (!q->first_ns)
        return 0;
    return add_stream(t, q, q->due_ns);
}

int bench_tenants_refused(struct tenant *t, const struct bench_request *q) {
    t->n_refused++;
    t->n_unexplained += q->retry_s <= 0;
    return samples_add(&t->refusal, q->answer_s);
}

void bench_tenants_failed(struct bench_tenants *r, struct tenant *t,
                          const struct bench_request *q) {
    t->n_failed++;
    if (!r->first_error[0])
        snprintf(r->first_error, sizeof(r->first_error), "%s", q->error);
}

int bench_tenants_cut(struct bench_tenants *r, struct tenant *t, const struct bench_request *q,
                      int64_t due_ns) {
    if (q && q->first_ns) {
        t->n_received += q->n_pieces;
        return add_stream(t, q, due_ns);
    }
    t->n_unanswered++;
    return add_wait(t, due_ns, MAX(r->end_ns, due_ns));
}

static int by_beginning(const void *a, const void *b) {
    int64_t x = ((const struct span *)a)->from_ns, y = ((const struct span *)b)->from_ns;

    return (x > y) - (x < y);
}

static void sort_waits(struct tenant *t) {
    if (t->wait.n)
        qsort(t->wait.v, t->wait.n, sizeof(*t->wait.v), by_beginning);
}

/* Returns the share of the time in which at least one turn waited. */
static double waiting(const struct bench_tenants *r, struct tenant *t) {
    int64_t covered_ns = 0, to_ns = r->start_ns;

    sort_waits(t);
    for (size_t i = 0; i < t->wait.n; i++) {
        const struct span *w = &t->wait.v[i];
        int64_t from_ns = MAX(w->from_ns, to_ns), end_ns = MIN(w->to_ns, r->end_ns);

        if (end_ns > from_ns) {
            covered_ns += end_ns - from_ns;
            to_ns = end_ns;
        }
    }
    return (double)covered_ns / (double)MAX(r->end_ns - r->start_ns, (int64_t)1);
}

int bench_tenants_during(const struct tenant *t, struct tenant *other, struct samples *out) {
    int e = 0;

    *out = (struct samples){0};
    for (size_t i = 0; e == 0 && i < t->gap.n; i++) {
        const struct span *g = &t->gap.v[i];
        bool within = false;

        for (size_t k = 0; !within && k < other->wait.n; k++)
            within = g->from_ns < other->wait.v[k].to_ns && g->to_ns > other->wait.v[k].from_ns;
        if (within)
            e = samples_add(out, (double)(g->to_ns - g->from_ns) * 1e-9);
    }
    return e;
}

double bench_tenants_jain(struct bench_tenants *r, bool wanting, uint32_t *n) {
    double sum = 0, squares = 0;

    *n = 0;
    for (uint32_t i = 0; i < TENANTS; i++) {
        struct tenant *t = &r->tenant[i];

        if (!t->here || (wanting && waiting(r, t) < WANTING))
            continue;
        assert(t->weight > 0);
        double x = (double)(t->n_prompt + t->n_out) / t->weight;
        sum += x;
        squares += x * x;
        ++*n;
    }
    if (*n > 1 && squares > 0)
        return sum * sum / (*n * squares);
    return 0;
}

/* Returns the length of the run in seconds, never 0. */
static double bench_tenants_seconds(const struct bench_tenants *r) {
    return (double)MAX(r->end_ns - r->start_ns, (int64_t)1) * 1e-9;
}

/* Adds the figures and samples of @t to those of @sum. Returns 0 or -ENOMEM. */
static int add_tenant(struct tenant *sum, const struct tenant *t) {
    sum->n_turns += t->n_turns;
    sum->n_finished += t->n_finished;
    sum->n_failed += t->n_failed;
    sum->n_unanswered += t->n_unanswered;
    sum->n_short += t->n_short;
    sum->n_jobs += t->n_jobs;
    sum->n_jobs_all += t->n_jobs_all;
    sum->n_refused += t->n_refused;
    sum->n_unexplained += t->n_unexplained;
    sum->n_planned += t->n_planned;
    sum->n_prompt += t->n_prompt;
    sum->n_cached += t->n_cached;
    sum->n_out += t->n_out;
    sum->n_received += t->n_received;
    TRY(samples_add_all(&sum->ttft, &t->ttft));
    TRY(samples_add_all(&sum->itl, &t->itl));
    TRY(samples_add_all(&sum->worst, &t->worst));
    TRY(samples_add_all(&sum->job, &t->job));
    return samples_add_all(&sum->refusal, &t->refusal);
}

/* Sums all tenants into one, whose samples the caller frees. */
static struct tenant bench_tenants_add_up(const struct bench_tenants *r) {
    struct tenant sum = {.name = "all", .here = true, .weight = 1};
    int e = 0;

    for (uint32_t i = 0; e == 0 && i < TENANTS; i++)
        e = add_tenant(&sum, &r->tenant[i]);
    return sum;
}

static void print_tenant(struct tenant *t, uint64_t served, FILE *f) {
    struct summary ttft = samples_summary(&t->ttft), itl = samples_summary(&t->itl),
                   job = samples_summary(&t->job);

    fprintf(f,
            "%-12s %5" PRIu64 " %5" PRIu64 "/%-5" PRIu64 " %9" PRIu64 " %5.1f%% %8" PRIu64
            " | %7.0f %7.0f %7.0f | %6.1f %6.1f %6.1f %7.0f | %7.1f %7.1f | %5.1f%% %7" PRIu64 "\n",
            t->name, t->n_turns, t->n_jobs, t->n_jobs_all, t->n_prompt,
            100.0 * (double)t->n_cached / (double)MAX(t->n_prompt, (uint64_t)1), t->n_out,
            1e3 * ttft.p50, 1e3 * ttft.p90, 1e3 * ttft.p99, 1e3 * itl.p50, 1e3 * itl.p90,
            1e3 * itl.p99, 1e3 * itl.max, job.p50, job.p90,
            100.0 * (double)(t->n_prompt + t->n_out) / (double)MAX(served, (uint64_t)1),
            t->n_refused);
}

static void print_notes(struct bench_tenants *r, struct tenant *all, FILE *f) {
    struct summary refusal = samples_summary(&all->refusal);
    uint32_t n_all, n_wanting;
    double jain = bench_tenants_jain(r, false, &n_all),
           jain_wanting = bench_tenants_jain(r, true, &n_wanting);

    fprintf(f,
            "%.1f s, %" PRIu64 " of %" PRIu64 " turns finished, %.1f output tokens/s, %.2f "
            "turns/s\n",
            bench_tenants_seconds(r), all->n_finished, all->n_turns,
            (double)all->n_out / bench_tenants_seconds(r),
            (double)all->n_finished / bench_tenants_seconds(r));
    if (n_all > 1)
        fprintf(f, "Jain's index of served tokens: %.3f of all tenants\n", jain);
    if (n_wanting > 1)
        fprintf(f, "Jain's index of served tokens: %.3f of the %u that could use more\n",
                jain_wanting, n_wanting);
    if (refusal.n)
        fprintf(f,
                "refused %zu times, %" PRIu64
                " without Retry-After; ms until the refusal: p50 %.2f, p99 %.2f, "
                "longest %.2f\n",
                refusal.n, all->n_unexplained, 1e3 * refusal.p50, 1e3 * refusal.p99,
                1e3 * refusal.max);
    if (all->n_unanswered)
        fprintf(f, "%" PRIu64 " turns had no first token at the end\n", all->n_unanswered);
    if (all->n_short)
        fprintf(f, "%" PRIu64 " answers were shorter than asked for\n", all->n_short);
    if (all->n_failed)
        fprintf(f, "%" PRIu64 " turns failed: %s\n", all->n_failed, r->first_error);
}

static void print_during(struct bench_tenants *r, struct tenant *during, FILE *f) {
    for (uint32_t i = 0; i < TENANTS; i++) {
        struct tenant *t = &r->tenant[i];
        struct samples gaps;

        if (!t->here || t == during || bench_tenants_during(t, during, &gaps) < 0)
            continue;
        struct summary s = samples_summary(&gaps);
        fprintf(f,
                "while %s waited: %s between tokens, ms: p50 %.1f, p90 %.1f, p99 %.1f, longest "
                "%.1f (%zu)\n",
                during->name, t->name, 1e3 * s.p50, 1e3 * s.p90, 1e3 * s.p99, 1e3 * s.max, s.n);
        samples_deinit(&gaps);
    }
}

void bench_tenants_print(struct bench_tenants *r, struct tenant *during, FILE *f) {
    struct tenant all = bench_tenants_add_up(r);

    print_notes(r, &all, f);
    if (during)
        print_during(r, during, f);
    fprintf(f,
            "%-12s %5s %11s %9s %6s %8s | %23s | %28s | %15s | %6s %7s\n"
            "%-12s %5s %11s %9s %6s %8s | %7s %7s %7s | %6s %6s %6s %7s | %7s %7s | %6s %7s\n",
            "", "", "", "prompt", "", "output", "first token, ms", "between tokens, ms", "job, s",
            "", "", "tenant", "turns", "jobs", "tokens", "cached", "tokens", "p50", "p90", "p99",
            "p50", "p90", "p99", "longest", "p50", "p90", "served", "refused");
    for (uint32_t i = 0; i < TENANTS; i++)
        if (r->tenant[i].here)
            print_tenant(&r->tenant[i], all.n_prompt + all.n_out, f);
    free_tenant(&all);
}

static void json_during(const struct tenant *t, struct tenant *during, yyjson_mut_doc *d,
                        yyjson_mut_val *v) {
    struct samples gaps;

    if (bench_tenants_during(t, during, &gaps) == 0) {
        struct summary s = samples_summary(&gaps);

        bench_json_summary(d, v, "itl_during_ms", &s, 1e3);
    }
    samples_deinit(&gaps);
}

static void json_tenant(struct tenant *t, yyjson_mut_doc *d, yyjson_mut_val *v) {
    const struct {
        const char *key;
        uint64_t n;
    } counts[] = {
        {"turns", t->n_turns},
        {"finished", t->n_finished},
        {"failed", t->n_failed},
        {"unanswered", t->n_unanswered},
        {"short", t->n_short},
        {"jobs", t->n_jobs},
        {"jobs_all", t->n_jobs_all},
        {"refused", t->n_refused},
        {"refused_without_retry_after", t->n_unexplained},
        {"planned_prompt_tokens", t->n_planned},
        {"prompt_tokens", t->n_prompt},
        {"cached_tokens", t->n_cached},
        {"output_tokens", t->n_out},
        {"received_pieces", t->n_received},
    };
    struct {
        const char *key;
        struct samples *samples;
        double scale;
    } rows[] = {{"ttft_ms", &t->ttft, 1e3},
                {"itl_ms", &t->itl, 1e3},
                {"largest_gap_ms", &t->worst, 1e3},
                {"job_s", &t->job, 1},
                {"refusal_ms", &t->refusal, 1e3}};

    yyjson_mut_obj_add_strcpy(d, v, "name", t->name);
    yyjson_mut_obj_add_real(d, v, "weight", t->weight);
    for (size_t i = 0; i < ARRAY_SIZE(counts); i++)
        yyjson_mut_obj_add_uint(d, v, counts[i].key, counts[i].n);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct summary s = samples_summary(rows[i].samples);

        bench_json_summary(d, v, rows[i].key, &s, rows[i].scale);
    }
}

void bench_tenants_json(struct bench_tenants *r, struct tenant *during, yyjson_mut_doc *d,
                        yyjson_mut_val *root) {
    struct tenant all = bench_tenants_add_up(r);
    yyjson_mut_val *list;
    uint32_t n;

    yyjson_mut_obj_add_real(d, root, "seconds", bench_tenants_seconds(r));
    yyjson_mut_obj_add_real(d, root, "output_tokens_per_s",
                            (double)all.n_out / bench_tenants_seconds(r));
    yyjson_mut_obj_add_real(d, root, "turns_per_s",
                            (double)all.n_finished / bench_tenants_seconds(r));
    yyjson_mut_obj_add_real(d, root, "jain", bench_tenants_jain(r, false, &n));
    yyjson_mut_obj_add_real(d, root, "jain_wanting", bench_tenants_jain(r, true, &n));
    yyjson_mut_obj_add_uint(d, root, "wanting", n);
    if (r->first_error[0])
        yyjson_mut_obj_add_strcpy(d, root, "first_error", r->first_error);
    json_tenant(&all, d, yyjson_mut_obj_add_obj(d, root, "all"));
    list = yyjson_mut_obj_add_arr(d, root, "tenants");
    for (uint32_t i = 0; i < TENANTS; i++)
        if (r->tenant[i].here) {
            yyjson_mut_val *v = yyjson_mut_arr_add_obj(d, list);

            yyjson_mut_obj_add_uint(d, v, "tenant", i);
            yyjson_mut_obj_add_real(d, v, "waiting", waiting(r, &r->tenant[i]));
            json_tenant(&r->tenant[i], d, v);
            if (during)
                json_during(&r->tenant[i], during, d, v);
        }
    free_tenant(&all);
}
