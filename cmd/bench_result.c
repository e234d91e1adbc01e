#include "cmd/bench_result.h"

#include <assert.h>
#include <inttypes.h>
#include <yyjson.h>

#include "base/try.h"
#include "cmd/bench_json.h"

void bench_result_deinit(struct bench_result *r) {
    samples_deinit(&r->ttft);
    samples_deinit(&r->itl);
    samples_deinit(&r->tpot);
    samples_deinit(&r->e2e);
    samples_deinit(&r->gap);
}

static double largest(const struct samples *s) {
    double max = 0;

    for (size_t i = 0; i < s->n; i++)
        max = MAX(max, s->v[i]);
    return max;
}

/* Returns true if the request meets both objectives. The one between tokens applies to the mean
 * time, because a piece may hold several tokens. */
static bool is_good(const struct bench_result *r, bool streamed, double ttft, double tpot) {
    if (r->slo_ttft_s > 0 && (!streamed || ttft > r->slo_ttft_s))
        return false;
    return r->slo_itl_s <= 0 || (streamed && tpot <= r->slo_itl_s);
}

int bench_result_add(struct bench_result *r, const struct bench_request *q) {
    bool streamed = q->first_ns > 0;
    double ttft = (double)(q->first_ns - q->due_ns) * 1e-9, tpot = 0;
    int64_t n_tokens = q->output_tokens;

    assert(q->outcome < OUTCOMES && q->end_ns >= q->due_ns);
    assert(!streamed || (q->first_ns <= q->last_ns && q->last_ns <= q->end_ns));
    r->end_ns = MAX(r->end_ns, q->end_ns);
    r->n[q->outcome]++;
    if (q->outcome != OUTCOME_OK) {
        if (!r->first_error[0])
            snprintf(r->first_error, sizeof(r->first_error), "%s", q->error);
        return 0;
    }
    if (n_tokens < 0) {
        n_tokens = (int64_t)q->n_pieces;
        r->n_guessed++;
    }
    r->output_tokens += (uint64_t)n_tokens;
    r->prompt_tokens += (uint64_t)MAX(q->prompt_tokens, (int64_t)0);
    r->cached_tokens += (uint64_t)MAX(q->cached_tokens, (int64_t)0);
    TRY(samples_add(&r->e2e, (double)(q->end_ns - q->due_ns) * 1e-9));
    if (streamed)
        TRY(samples_add(&r->ttft, ttft));
    if (streamed && n_tokens > 1) {
        tpot = (double)(q->last_ns - q->first_ns) * 1e-9 / (double)(n_tokens - 1);
        TRY(samples_add(&r->tpot, tpot));
    }
    if (q->gaps.n)
        TRY(samples_add(&r->gap, largest(&q->gaps)));
    TRY(samples_add_all(&r->itl, &q->gaps));
    r->n_good += is_good(r, streamed, ttft, tpot);
    assert(r->n_good <= r->n[OUTCOME_OK] && r->n_guessed <= r->n[OUTCOME_OK]);
    return 0;
}

uint64_t bench_result_n_done(const struct bench_result *r) {
    uint64_t n = 0;

    for (int i = 0; i < OUTCOMES; i++)
        n += r->n[i];
    return n;
}

/* Returns the seconds from the start to the last end; 0 before the first end. */
static double seconds_of(const struct bench_result *r) {
    if (r->end_ns > r->start_ns)
        return (double)(r->end_ns - r->start_ns) * 1e-9;
    return 0;
}

static double result_rate(double n, const struct bench_result *r) {
    double s = seconds_of(r);

    if (s > 0)
        return n / s;
    return 0;
}

static void result_print_row(FILE *f, const char *name, struct samples *v) {
    struct summary s = samples_summary(v);

    if (s.n)
        fprintf(f, "%-22s %9.1f %9.1f %9.1f %9.1f %9.1f %9zu\n", name, 1e3 * s.mean, 1e3 * s.p50,
                1e3 * s.p90, 1e3 * s.p99, 1e3 * s.max, s.n);
}

void bench_result_print(struct bench_result *r, FILE *f) {
    fprintf(f, "requests               %" PRIu64 " ok", r->n[OUTCOME_OK]);
    for (int i = OUTCOME_OK + 1; i < OUTCOMES; i++)
        if (r->n[i])
            fprintf(f, ", %" PRIu64 " %s", r->n[i], outcome_name((enum outcome)i));
    fprintf(f, " in %.2f s\n", seconds_of(r));
    if (r->first_error[0])
        fprintf(f, "first error            %s\n", r->first_error);
    fprintf(f, "prompt tokens          %" PRIu64 " (%" PRIu64 " cached)\n", r->prompt_tokens,
            r->cached_tokens);
    fprintf(f, "output tokens          %" PRIu64 "%s\n", r->output_tokens,
            r->n_guessed ? " (no usage from the server: pieces counted)" : "");
    fprintf(f, "output tokens/s        %.2f\n", result_rate((double)r->output_tokens, r));
    if (r->joules > 0)
        fprintf(f, "energy                 %.1f J, %.3f J per output token\n", r->joules,
                r->joules / (double)MAX(r->output_tokens, (uint64_t)1));
    fprintf(f, "requests/s             %.3f\n", result_rate((double)r->n[OUTCOME_OK], r));
    if (r->slo_ttft_s > 0 || r->slo_itl_s > 0)
        fprintf(f, "goodput                %.3f requests/s, %.1f %% of all\n",
                result_rate((double)r->n_good, r),
                100.0 * (double)r->n_good / (double)MAX(bench_result_n_done(r), (uint64_t)1));
    fprintf(f, "\n%-22s %9s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p99", "max", "n");
    result_print_row(f, "time to first token", &r->ttft);
    result_print_row(f, "inter-token", &r->itl);
    result_print_row(f, "per output token", &r->tpot);
    result_print_row(f, "largest gap", &r->gap);
    result_print_row(f, "end to end", &r->e2e);
}

void bench_result_json(struct bench_result *r, yyjson_mut_doc *d, yyjson_mut_val *root) {
    struct {
        const char *key;
        struct samples *samples;
    } rows[] = {{"ttft_ms", &r->ttft},
                {"itl_ms", &r->itl},
                {"tpot_ms", &r->tpot},
                {"largest_gap_ms", &r->gap},
                {"e2e_ms", &r->e2e}};
    yyjson_mut_val *v = yyjson_mut_obj_add_obj(d, root, "requests");

    for (int i = 0; i < OUTCOMES; i++)
        yyjson_mut_obj_add_uint(d, v, outcome_name((enum outcome)i), r->n[i]);
    if (r->first_error[0])
        yyjson_mut_obj_add_strcpy(d, root, "first_error", r->first_error);
    yyjson_mut_obj_add_real(d, root, "seconds", seconds_of(r));
    yyjson_mut_obj_add_uint(d, root, "prompt_tokens", r->prompt_tokens);
    yyjson_mut_obj_add_uint(d, root, "cached_tokens", r->cached_tokens);
    yyjson_mut_obj_add_uint(d, root, "output_tokens", r->output_tokens);
    yyjson_mut_obj_add_bool(d, root, "output_tokens_counted_as_pieces", r->n_guessed > 0);
    yyjson_mut_obj_add_real(d, root, "output_tokens_per_s",
                            result_rate((double)r->output_tokens, r));
    yyjson_mut_obj_add_real(d, root, "requests_per_s", result_rate((double)r->n[OUTCOME_OK], r));
    if (r->joules > 0) {
        yyjson_mut_obj_add_real(d, root, "energy_joules", r->joules);
        yyjson_mut_obj_add_real(d, root, "joules_per_output_token",
                                r->joules / (double)MAX(r->output_tokens, (uint64_t)1));
    }
    if (r->slo_ttft_s > 0 || r->slo_itl_s > 0) {
        yyjson_mut_obj_add_uint(d, root, "good_requests", r->n_good);
        yyjson_mut_obj_add_real(d, root, "goodput_requests_per_s",
                                result_rate((double)r->n_good, r));
    }
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct summary s = samples_summary(rows[i].samples);

        bench_json_summary(d, root, rows[i].key, &s, 1e3);
    }
}
