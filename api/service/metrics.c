#include "api/service/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "api/http/exchange.h"
#include "api/generation/gen.h"
#include "api/private.h"
#include "api/http/respond.h"

/*
 * A scrape formats what is already counted: routers ask every 50 ms and take figures older than 200 ms
 * for an overload. Names and buckets are vLLM's because its dashboards and routers are the ones that
 * exist; a bucket may be added, since histograms are summed by bucket, but none removed.
 */

#define END -1.0
#define TEXT_MAX (1u << 20)

static const double ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,   .75, 1,
                                     2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560, END};
static const double between_bounds[] = {.001, .0025, .005, .01, .025, .05, .075, .1,
                                        .15,  .2,    .3,   .4,  .5,   .75, 1,    2.5,
                                        5,    7.5,   10,   20,  40,   80,  END};
static const double e2e_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, END};
static const double token_bounds[] = {1,     2,      5,      10,     20,   50,    100,
                                      200,   500,    1000,   2000,   5000, 10000, 20000,
                                      50000, 100000, 200000, 500000, END};
static const double n_bounds[] = {1, 2, 5, 10, 20, END};

void metrics_init(struct metrics *m) {
    memset(m, 0, sizeof(*m));
    m->ttft.bounds = ttft_bounds;
    m->between.bounds = m->per_token.bounds = between_bounds;
    m->e2e.bounds = m->queue.bounds = m->prefill.bounds = m->decode.bounds = m->inference.bounds =
        e2e_bounds;
    m->prompt_tokens.bounds = m->output_tokens.bounds = m->max_tokens.bounds = token_bounds;
    m->n.bounds = n_bounds;
}

static void observe(struct histogram *h, double v, uint32_t times) {
    uint32_t i = 0;

    while (h->bounds[i] >= 0 && v > h->bounds[i])
        i++;
    h->count[i] += times;
    h->n += times;
    h->sum += v * times;
}

/* From @from to @to, both in ns, when both are known. */
static void observe_span(struct histogram *h, int64_t from, int64_t to) {
    if (from && to)
        observe(h, (double)MAX(to - from, 0) / 1e9, 1);
}

void metrics_first_token(struct metrics *m, const struct gen *g) {
    observe_span(&m->queue, g->m.arrived_ns, g->first_step_ns);
    observe_span(&m->ttft, g->m.arrived_ns, g->first_token_ns);
    observe_span(&m->prefill, g->first_step_ns, g->first_token_ns);
}

void metrics_between_tokens(struct metrics *m, int64_t ns, uint32_t n) {
    observe(&m->between, (double)ns / 1e9 / n, n);
}

void metrics_gen_done(struct metrics *m, const struct gen *g, const struct exchange *x,
                      uint32_t n) {
    bool ok = g->finish == FINISH_STOP || g->finish == FINISH_LENGTH;

    m->success[!ok ? 2 : g->finish == FINISH_LENGTH ? 1 : *gen_finish_name(g) == 't' ? 3 : 0]++;
    if (!ok)
        return;
    observe_span(&m->decode, g->first_token_ns, g->last_token_ns);
    observe_span(&m->inference, g->first_step_ns, g->done_ns);
    observe_span(&m->e2e, x->started_ns, g->done_ns);
    if (g->n_out > 1)
        observe(&m->per_token,
                (double)(g->last_token_ns - g->first_token_ns) / 1e9 / (g->n_out - 1), 1);
    observe(&m->prompt_tokens, g->n_prompt, 1);
    if (g->vector)
        return; /* nothing was put out */
    observe(&m->output_tokens, g->n_out, 1);
    observe(&m->max_tokens, g->m.max_new, 1);
    if (g->m.choice == 0)
        observe(&m->n, n, 1);
}

/* ---- text ---- */

struct page {
    struct buf *out;
    char labels[300]; /* model_name="x",engine="0" */
    int error;
};

static void put(struct page *p, const char *fmt, ...) PRINTF(2, 3);
static void put(struct page *p, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    if (p->error == 0)
        p->error = buf_vprintf(p->out, fmt, ap);
    va_end(ap);
}

static void head(struct page *p, const char *name, const char *type, const char *help) {
    put(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void single(struct page *p, const char *name, const char *type, const char *help, double v) {
    head(p, name, type, help);
    put(p, "%s{%s} %.17g\n", name, p->labels, v);
}

static void counter(struct page *p, const char *name, const char *help, uint64_t v) {
    single(p, name, "counter", help, (double)v);
}

static void gauge(struct page *p, const char *name, const char *help, double v) {
    single(p, name, "gauge", help, v);
}

static void put_by_source(struct page *p, const char *name, const char *help,
                          const uint64_t v[MSG_DRAFT_SOURCES]) {
    head(p, name, "counter", help);
    for (int i = 0; i < MSG_DRAFT_SOURCES; i++)
        put(p, "%s{%s,source=\"%s\"} %" PRIu64 "\n", name, p->labels, msg_draft_source[i], v[i]);
}

static void histogram(struct page *p, const char *name, const char *help,
                      const struct histogram *h) {
    uint64_t sum = 0;

    head(p, name, "histogram", help);
    for (uint32_t i = 0; h->bounds[i] >= 0; i++) {
        sum += h->count[i];
        put(p, "%s_bucket{%s,le=\"%.10g\"} %llu\n", name, p->labels, h->bounds[i],
            (unsigned long long)sum);
    }
    put(p, "%s_bucket{%s,le=\"+Inf\"} %llu\n%s_sum{%s} %.17g\n%s_count{%s} %llu\n", name, p->labels,
        (unsigned long long)h->n, name, p->labels, h->sum, name, p->labels,
        (unsigned long long)h->n);
}

/* A label value: quotes, backslashes and newlines escaped. */
static void set_labels(struct page *p, const char *model) {
    size_t n = (size_t)snprintf(p->labels, sizeof(p->labels), "model_name=\"");

    for (; *model && n + 24 < sizeof(p->labels); model++) {
        if (*model == '"' || *model == '\\')
            p->labels[n++] = '\\';
        p->labels[n++] = *model == '\n' ? ' ' : *model;
    }
    snprintf(p->labels + n, sizeof(p->labels) - n, "\",engine=\"0\"");
}

static void put_load(struct page *p, const struct api *a) {
    const struct msg_stats *w = &a->metrics.worker;
    uint32_t running =
        a->metrics.has_worker ? MIN(w->n_running, a->admit.n_running) : a->admit.n_running;
    uint32_t waiting = a->admit.n_queued + a->admit.n_running - running;
    double usage = w->n_pages ? (double)w->n_used / w->n_pages : 0;

    gauge(p, "vllm:num_requests_running", "Generations in the running batch.", running);
    gauge(p, "vllm:num_requests_waiting", "Generations that wait to be run.", waiting);
    gauge(p, "vllm:kv_cache_usage_perc", "Used KV pages, 0 to 1.", usage);
    gauge(p, "vllm:gpu_cache_usage_perc", "As vllm:kv_cache_usage_perc, for older readers.", usage);
    head(p, "vllm:cache_config_info", "gauge", "Size of the KV cache.");
    put(p, "vllm:cache_config_info{%s,block_size=\"%u\",num_gpu_blocks=\"%u\"} 1\n", p->labels,
        a->model->page_tokens, a->model->n_pages);
    if (a->model->recipe) {
        head(p, "weft_engine_info", "gauge", "How steps are computed.");
        put(p, "weft_engine_info{%s,determinism=\"%s\"} 1\n", p->labels,
            strncmp(a->model->recipe, "fast", 4) == 0 ? "fast" : "strict");
    }
    counter(p, "vllm:num_preemptions_total", "Generations preempted.", w->n_preemptions);
    counter(p, "vllm:prefix_cache_queries_total", "Prompt tokens looked up.", w->n_lookup_tokens);
    counter(p, "vllm:prefix_cache_hits_total", "Prompt tokens found.", w->n_hit_tokens);
    counter(p, "vllm:gpu_prefix_cache_queries_total", "As above, for older readers.",
            w->n_lookup_tokens);
    counter(p, "vllm:gpu_prefix_cache_hits_total", "As above, for older readers.", w->n_hit_tokens);
    counter(p, "vllm:spec_decode_num_drafts_total", "Drafts checked.", w->n_drafts);
    counter(p, "vllm:spec_decode_num_draft_tokens_total", "Drafted tokens.", w->n_drafted);
    counter(p, "vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens that were right.",
            w->n_accepted);
    counter(p, "weft_grammar_cache_hits_total", "Requests whose grammar was compiled already.",
            w->n_grammar_hits);
    counter(p, "weft_grammars_compiled_total", "Grammars compiled.", w->n_grammars);
    counter(p, "weft_grammars_refused_total", "Grammars that the worker refused.",
            w->n_grammars_refused);
    single(p, "weft_grammar_compile_seconds_total", "counter", "Time that compiling took.",
           (double)w->compile_ns_total / 1e9);
    gauge(p, "weft_grammars_compiling", "Grammars that somebody waits for.", w->n_compiling);
    gauge(p, "weft_grammar_bytes", "Memory of compiled grammars.", (double)w->grammar_bytes);
    counter(p, "weft_masks_total", "Masks of constrained tokens.", w->n_masks);
    single(p, "weft_mask_seconds_total", "counter", "Time that masks took of the step loop.",
           (double)w->mask_ns_total / 1e9);
    counter(p, "weft_host_saved_tokens_total", "Tokens whose pages were copied to host memory.",
            w->n_saved_tokens);
    counter(p, "weft_host_fetched_tokens_total", "Tokens whose pages came back from there.",
            w->n_fetched_tokens);
    counter(p, "weft_host_left_tokens_total",
            "Tokens that were there and computed all the same, which was faster.",
            w->n_left_tokens);
    counter(p, "weft_disk_saved_tokens_total", "Tokens whose pages were written to the disk.",
            w->n_disk_saved_tokens);
    counter(p, "weft_disk_loaded_tokens_total", "Tokens whose pages were read from there.",
            w->n_disk_loaded_tokens);
    counter(p, "weft_disk_left_tokens_total",
            "Tokens that were there and computed all the same, which was faster.",
            w->n_disk_left_tokens);
    counter(p, "weft_disk_bad_pages_total", "Pages there that were damaged.", w->n_disk_bad);
    gauge(p, "weft_disk_pages", "Pages that fit there.", w->n_disk_pages);
    gauge(p, "weft_disk_pages_used", "Pages that are there.", w->n_disk_used);
    counter(p, "weft_swaps_total", "Preemptions whose pages were saved to host memory.",
            w->n_swapped);
    counter(p, "weft_recomputes_total", "Preemptions after which everything is computed again.",
            w->n_not_swapped);
    put_by_source(p, "weft_draft_tokens_total", "Drafted tokens by source.", w->drafted_by);
    put_by_source(p, "weft_draft_accepted_tokens_total", "Those of them that were right.",
                  w->accepted_by);
}

static void put_requests(struct page *p, const struct api *a) {
    static const char *const reasons[] = {"stop", "length", "abort", "tool_calls"};
    const struct metrics *m = &a->metrics;

    counter(p, "vllm:prompt_tokens_total", "Prompt tokens.", a->stats.n_prompt_tokens);
    counter(p, "vllm:generation_tokens_total", "Output tokens.", a->stats.n_output_tokens);
    head(p, "vllm:request_success_total", "counter", "Generations that ended, by reason.");
    for (uint32_t i = 0; i < ARRAY_SIZE(reasons); i++)
        put(p, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", p->labels,
            reasons[i], (unsigned long long)m->success[i]);
    histogram(p, "vllm:time_to_first_token_seconds", "Receipt to first token.", &m->ttft);
    histogram(p, "vllm:inter_token_latency_seconds", "Between tokens.", &m->between);
    histogram(p, "vllm:request_time_per_output_token_seconds", "Mean of a generation.",
              &m->per_token);
    histogram(p, "vllm:e2e_request_latency_seconds", "Receipt to last token.", &m->e2e);
    histogram(p, "vllm:request_queue_time_seconds", "Receipt to first step.", &m->queue);
    histogram(p, "vllm:request_prefill_time_seconds", "First step to first token.", &m->prefill);
    histogram(p, "vllm:request_decode_time_seconds", "First to last token.", &m->decode);
    histogram(p, "vllm:request_inference_time_seconds", "First step to last token.", &m->inference);
    histogram(p, "vllm:request_prompt_tokens", "Prompt tokens of a generation.", &m->prompt_tokens);
    histogram(p, "vllm:request_generation_tokens", "Output tokens of a generation.",
              &m->output_tokens);
    histogram(p, "vllm:request_params_max_tokens", "max_tokens after clamping.", &m->max_tokens);
    histogram(p, "vllm:request_params_n", "n of a request.", &m->n);
}

/* The first of them are named, with those of the tenants file among them; the others are one. */
#define TENANTS_NAMED 64

/* Names of keys may have any character. */
static const char *label_of(const struct tenant *t, char out[64]) {
    size_t i = 0;

    for (; t->conf.name[i]; i++) {
        char c = t->conf.name[i];

        out[i] = c == '"' || c == '\\' || c == '\n' ? '_' : c;
    }
    out[i] = 0;
    return out;
}

static uint64_t figure_of(const struct tenant *t, uint32_t which) {
    const uint64_t figure[] = {t->n_requests,      t->n_limited,       t->n_prompt_tokens,
                               t->n_cached_tokens, t->n_output_tokens, t->n_running,
                               t->n_queued};

    return figure[which];
}

static void put_tenants(struct page *p, const struct tenants *ts) {
    static const struct {
        const char *name, *type, *help;
    } family[] = {
        {"weft_tenant_requests_total", "counter", "Requests admitted or queued."},
        {"weft_tenant_limited_total", "counter", "Requests refused with 429."},
        {"weft_tenant_prompt_tokens_total", "counter", "Prompt tokens."},
        {"weft_tenant_cached_tokens_total", "counter", "Prompt tokens found in the cache."},
        {"weft_tenant_output_tokens_total", "counter", "Output tokens."},
        {"weft_tenant_requests_running", "gauge", "Generations at the worker."},
        {"weft_tenant_requests_waiting", "gauge", "Generations waiting for it."},
    };

    for (uint32_t k = 0; k < ARRAY_SIZE(family); k++) {
        uint64_t others = 0;
        char name[64];

        head(p, family[k].name, family[k].type, family[k].help);
        for (uint32_t i = 0; i < ts->n; i++) {
            if (i >= TENANTS_NAMED)
                others += figure_of(ts->list[i], k);
            else
                put(p, "%s{%s,tenant=\"%s\"} %llu\n", family[k].name, p->labels,
                    label_of(ts->list[i], name), (unsigned long long)figure_of(ts->list[i], k));
        }
        if (ts->n > TENANTS_NAMED)
            put(p, "%s{%s,tenant=\"(others)\"} %llu\n", family[k].name, p->labels,
                (unsigned long long)others);
    }
}

static void put_own(struct page *p, const struct api *a) {
    const struct api_stats *s = &a->stats;
    const struct msg_stats *w = &a->metrics.worker;

    gauge(p, "weft_connections", "Open client connections.", s->n_connections);
    gauge(p, "weft_serving", "1 while new requests are served.",
          server_health(a) == API_SERVING ? 1 : 0);
    counter(p, "weft_http_requests_total", "Requests answered.", s->n_requests);
    counter(p, "weft_http_client_errors_total", "Answers 4xx.", s->n_client_errors);
    counter(p, "weft_http_server_errors_total", "Answers 5xx.", s->n_server_errors);
    counter(p, "weft_http_rejected_total", "Answers 429 and 503.", s->n_rejected);
    counter(p, "weft_http_cancelled_total", "Requests whose client left.", s->n_cancelled);
    counter(p, "weft_resumed_total", "Generations resumed by a new worker.", s->n_resumed);
    counter(p, "weft_workers_lost_total", "Workers that died.", a->metrics.n_workers_lost);
    counter(p, "weft_steps_total", "Steps of the worker.", w->n_steps);
    counter(p, "weft_pages_evicted_total", "Cached pages evicted.", w->n_evicted);
    gauge(p, "weft_pages_cached", "Pages that hold idle prefixes.", w->n_cached);
    gauge(p, "weft_pages_free", "Free pages.", w->n_free);
    gauge(p, "weft_pages_kept", "Of the cached ones, those kept for a session's next turn.",
          w->n_kept);
    counter(p, "weft_recomputed_tokens_total",
            "Prompt tokens computed again that an earlier turn of the session had computed.",
            w->n_recomputed_tokens);
    counter(p, "weft_kept_turns_dropped_total", "Turns kept whose pages were needed by others.",
            w->n_retained_dropped);
    counter(p, "weft_prewarm_tokens_total",
            "Tokens computed ahead for the next turns of chats; in no other counter.",
            w->n_prewarm_tokens);
    counter(p, "weft_prewarm_hit_tokens_total", "Of them, those that the turn then found.",
            w->n_prewarm_hit_tokens);
    gauge(p, "weft_tenants_active", "Tenants that have requests at the worker.", w->n_tenants);
    gauge(p, "weft_fairness_jain",
          "Jain's index of device time by weight of the last minute, 1 is equal.",
          w->jain_milli / 1000.0);
    gauge(p, "weft_last_step_seconds", "Time of the last step.", w->last_step_us / 1e6);
    gauge(p, "weft_last_step_rows", "Tokens computed in the last step.", w->last_rows);
    gauge(p, "weft_worker_report_age_seconds", "Age of the worker's figures; -1: none.",
          a->metrics.has_worker ? (double)(clock_now(a->clock) - w->at_ns) / 1e9 : -1);
}

void metrics_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = TEXT_MAX};
    struct page p = {.out = &b};

    (void)h;
    set_labels(&p, x->api->model->id);
    put_load(&p, x->api);
    put_requests(&p, x->api);
    put_own(&p, x->api);
    put_tenants(&p, &x->api->tenants);
    if (p.error < 0)
        respond_errno(x, p.error);
    else
        respond(x, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
}
