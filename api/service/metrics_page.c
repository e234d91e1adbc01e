#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "api/http/respond.h"
#include "api/private.h"
#include "api/service/metrics.h"
#include "api/service/service.h"

/*
 * /metrics in Prometheus' text format. A scrape formats what is already counted: routers ask every
 * 50 ms and take figures older than 200 ms for an overload. Names are vLLM's where it has them.
 */

#define TEXT_MAX (1u << 20)

/* A page being written. The first failure sticks, and nothing is added after it. */
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

/* What Prometheus wants before the series of a family. */
static void head(struct page *p, const char *name, const char *type, const char *help) {
    put(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct page *p, const char *name, const char *help, double v) {
    head(p, name, "gauge", help);
    put(p, "%s{%s} %.17g\n", name, p->labels, v);
}

/* The family @name with the value of row @s in @stats. */
static void put_row(struct page *p, const char *name, const struct stat_row *s, const void *stats) {
    head(p, name, s->kind == STAT_COUNTER ? "counter" : "gauge", s->help);
    put(p, "%s{%s} %.17g\n", name, p->labels, stat_value(s, stats) / s->per);
}

/* All rows that have a family. */
static void put_rows(struct page *p, const struct stat_row *row, size_t n, const void *stats) {
    for (; n > 0; n--, row++)
        if (*row->metric)
            put_row(p, row->metric, row, stats);
}

/* What is counted for each source of drafts, with its name as a label. */
static void put_by_source(struct page *p, const struct msg_stats *w) {
    for (size_t k = 0; k < n_source_rows; k++) {
        const struct stat_row *row = &source_rows[k];

        head(p, row->metric, "counter", row->help);
        for (size_t i = 0; i < MSG_DRAFT_SOURCES; i++)
            put(p, "%s{%s,source=\"%s\"} %" PRIu64 "\n", row->metric, p->labels,
                msg_draft_source[i], stat_by_source(row, w)[i]);
    }
}

/* Buckets are cumulative there. */
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

/* What the worker counts, and what follows from it. */
static void put_worker(struct page *p, const struct api *a) {
    /* Names that readers of older versions of vLLM ask for. */
    static const struct {
        const char *was, *is;
    } older[] = {
        {"vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
        {"vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"},
    };
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
    put_rows(p, worker_rows, n_worker_rows, w);
    for (size_t i = 0; i < ARRAY_SIZE(older); i++)
        for (size_t k = 0; k < n_worker_rows; k++)
            if (strcmp(worker_rows[k].metric, older[i].is) == 0)
                put_row(p, older[i].was, &worker_rows[k], w);
    put_by_source(p, w);
    gauge(p, "weft_worker_report_age_seconds", "Age of the worker's figures; -1: none.",
          a->metrics.has_worker ? (double)(clock_now(a->clock) - w->at_ns) / 1e9 : -1);
}

static void put_generations(struct page *p, const struct metrics *m) {
    static const char *const reasons[] = {"stop", "length", "abort", "tool_calls"};

    head(p, "vllm:request_success_total", "counter", "Generations that ended, by reason.");
    for (uint32_t i = 0; i < ARRAY_SIZE(reasons); i++)
        put(p, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", p->labels,
            reasons[i], (unsigned long long)m->success[i]);
#define PUT_HISTOGRAM(field, bounds, family, help) histogram(p, family, help, &m->field);
    METRICS_HISTOGRAMS(PUT_HISTOGRAM)
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

static void put_tenants(struct page *p, const struct tenants *ts) {
    for (size_t k = 0; k < n_tenant_rows; k++) {
        const struct stat_row *row = &tenant_rows[k];
        uint64_t others = 0;
        char name[64];

        if (!*row->metric)
            continue;
        head(p, row->metric, row->kind == STAT_COUNTER ? "counter" : "gauge", row->help);
        for (uint32_t i = 0; i < ts->n; i++) {
            uint64_t v = stat_whole(row, &ts->list[i]->stats);

            if (i >= TENANTS_NAMED)
                others += v;
            else
                put(p, "%s{%s,tenant=\"%s\"} %" PRIu64 "\n", row->metric, p->labels,
                    label_of(ts->list[i], name), v);
        }
        if (ts->n > TENANTS_NAMED)
            put(p, "%s{%s,tenant=\"(others)\"} %" PRIu64 "\n", row->metric, p->labels, others);
    }
}

/* llama-server's families, which have no labels. What a generation's first token took is part of
 * the prompt's time. */
static void put_llamacpp(struct page *p, const struct api *a, const struct api_stats *front) {
    const struct metrics *m = &a->metrics;
    const struct msg_stats *w = &m->worker;
    double computed = (double)(front->n_prompt_tokens - front->n_cached_tokens);
    double decoded = m->output_tokens.sum - (double)m->output_tokens.n;
    double steps = MAX((double)w->n_steps, 1);
    const struct {
        const char *name, *type, *help;
        double v;
    } family[] = {
        {"prompt_tokens_total", "counter", "Prompt tokens computed.", computed},
        {"prompt_tokens_cached_total", "counter", "Prompt tokens whose pages were there.",
         (double)front->n_cached_tokens},
        {"prompt_seconds_total", "counter", "Time of prompts.", m->prefill.sum},
        {"tokens_predicted_total", "counter", "Output tokens.", (double)front->n_output_tokens},
        {"tokens_predicted_seconds_total", "counter", "Time of outputs.", m->decode.sum},
        {"n_decode_total", "counter", "Steps of the worker.", (double)w->n_steps},
        {"spec_decode_num_draft_tokens_total", "counter", "Drafted tokens that were checked.",
         (double)w->n_drafted},
        {"spec_decode_num_accepted_tokens_total", "counter", "Of them, accepted ones.",
         (double)w->n_accepted},
        {"spec_decode_num_drafts_total", "counter", "Drafts that were checked.",
         (double)w->n_drafts},
        {"prompt_tokens_seconds", "gauge", "Prompt tokens computed per second of prompts.",
         m->prefill.sum > 0 ? computed / m->prefill.sum : 0},
        {"predicted_tokens_seconds", "gauge", "Output tokens per second of outputs.",
         m->decode.sum > 0 ? decoded / m->decode.sum : 0},
        {"requests_processing", "gauge", "Generations at the worker.", a->admit.n_running},
        {"requests_deferred", "gauge", "Generations that wait.", a->admit.n_queued},
        {"n_busy_slots_per_decode", "gauge", "Output tokens per step of the worker.",
         (double)w->n_output_tokens / steps},
        {"kv_cache_usage_ratio", "gauge", "Used KV pages, 0 to 1.",
         w->n_pages ? (double)w->n_used / w->n_pages : 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(family); i++) {
        char name[64];

        snprintf(name, sizeof(name), "llamacpp:%s", family[i].name);
        head(p, name, family[i].type, family[i].help);
        put(p, "%s %.17g\n", name, family[i].v);
    }
}

void metrics_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = TEXT_MAX};
    struct page p = {.out = &b};
    struct api_stats front;

    (void)h;
    set_labels(&p, api_of(x)->model->id);
    put_worker(&p, api_of(x));
    gauge(&p, "weft_serving", "1 while new requests are served.",
          server_health(api_of(x)) == API_SERVING);
    api_stats(api_of(x), &front);
    put_rows(&p, front_rows, n_front_rows, &front);
    put_generations(&p, &api_of(x)->metrics);
    put_tenants(&p, &api_of(x)->tenants);
    put_llamacpp(&p, api_of(x), &front);
    if (p.error < 0)
        respond_errno(x, p.error);
    else
        respond(x, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
}
