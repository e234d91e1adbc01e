/*
 * /metrics in Prometheus' text format. A scrape formats what is already counted: routers ask every
 * 50 ms and take figures older than 200 ms for an overload. Names are vLLM's where it has them.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/generation/env.h"
#include "api/generation/gen.h"
#include "api/generation/metrics.h"
#include "api/generation/model.h"
#include "api/http/respond.h"
#include "api/service/service.h"
#include "base/result.h"

#define TEXT_MAX (4u << 20)

/* Limit of models on the page, which lists those that have been loaded. */
#define MODELS_SHOWN 64

/* A page being written. The first failure sticks, and nothing is added after it. A family has a
 * series for each model, or one of the daemon, with the first model's labels. */
struct page {
    struct buf *out;
    const struct model *model[MODELS_SHOWN];
    /* [n] model_name="x",engine="0" */
    char (*labels)[300];
    uint32_t n;
    int error;
};

static void metrics_put(struct page *p, const char *fmt, ...) PRINTF(2, 3);
static void metrics_put(struct page *p, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    if (p->error == 0)
        p->error = buf_vprintf(p->out, fmt, ap);
    va_end(ap);
}

/* Writes the lines that Prometheus wants before the series of a family. */
static void head(struct page *p, const char *name, const char *type, const char *help) {
    metrics_put(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct page *p, const char *name, const char *help, double v) {
    head(p, name, "gauge", help);
    metrics_put(p, "%s{%s} %.17g\n", name, p->labels[0], v);
}

static void gauge_of_models(struct page *p, const char *name, const char *help,
                            double (*value)(const struct model *m)) {
    head(p, name, "gauge", help);
    for (uint32_t i = 0; i < p->n; i++)
        metrics_put(p, "%s{%s} %.17g\n", name, p->labels[i], value(p->model[i]));
}

/* Writes the family @name with the value of row @s in each worker's last statistics. */
static void put_worker_row(struct page *p, const char *name, const struct stat_row *s) {
    head(p, name, s->kind == STAT_COUNTER ? "counter" : "gauge", s->help);
    for (uint32_t i = 0; i < p->n; i++)
        metrics_put(p, "%s{%s} %.17g\n", name, p->labels[i],
                    stat_value(s, &p->model[i]->worker) / s->per);
}

/* Writes a counter of the front, and the part of each model in it. */
static void put_front_row(struct page *p, const struct stat_row *s, const struct api_stats *front) {
    static const struct {
        const char *key;
        size_t at;
    } by_model[] = {
        {"prompt_tokens", offsetof(struct model, n_prompt_tokens)},
        {"cached_tokens", offsetof(struct model, n_cached_tokens)},
        {"output_tokens", offsetof(struct model, n_output_tokens)},
    };

    head(p, s->metric, s->kind == STAT_COUNTER ? "counter" : "gauge", s->help);
    for (size_t k = 0; k < ARRAY_SIZE(by_model); k++) {
        if (strcmp(by_model[k].key, s->key) != 0)
            continue;
        for (uint32_t i = 0; i < p->n; i++) {
            uint64_t v;

            memcpy(&v, (const char *)p->model[i] + by_model[k].at, sizeof(v));
            metrics_put(p, "%s{%s} %.17g\n", s->metric, p->labels[i], (double)v);
        }
        return;
    }
    metrics_put(p, "%s{%s} %.17g\n", s->metric, p->labels[0], stat_value(s, front) / s->per);
}

/* Writes the counters of each draft source, with its name as a label. */
static void put_by_source(struct page *p) {
    for (size_t k = 0; k < n_source_rows; k++) {
        const struct stat_row *row = &source_rows[k];

        head(p, row->metric, "counter", row->help);
        for (uint32_t m = 0; m < p->n; m++)
            for (size_t i = 0; i < MSG_DRAFT_SOURCES; i++)
                metrics_put(p, "%s{%s,source=\"%s\"} %" PRIu64 "\n", row->metric, p->labels[m],
                            msg_draft_source[i], stat_by_source(row, &p->model[m]->worker)[i]);
    }
}

/* Writes the figures of each device of each model, by its number. */
static void put_by_device(struct page *p) {
    for (size_t k = 0; k < n_device_rows; k++) {
        const struct stat_row *row = &device_rows[k];

        head(p, row->metric, row->kind == STAT_COUNTER ? "counter" : "gauge", row->help);
        for (uint32_t m = 0; m < p->n; m++) {
            const struct msg_stats *s = &p->model[m]->worker;

            for (uint32_t i = 0; i < MIN(s->n_devices, MSG_DEVICES); i++)
                metrics_put(p, "%s{%s,device=\"%u\"} %.17g\n", row->metric, p->labels[m],
                            s->device[i].number, stat_value(row, &s->device[i]) / row->per);
        }
    }
}

/* Writes the buckets of a histogram, which are cumulative in this format. */
static void put_buckets(struct page *p, const char *name, const char *labels,
                        const struct histogram *h) {
    uint64_t sum = 0;

    for (uint32_t i = 0; h->bounds[i] >= 0; i++) {
        sum += h->count[i];
        metrics_put(p, "%s_bucket{%s,le=\"%.10g\"} %llu\n", name, labels, h->bounds[i],
                    (unsigned long long)sum);
    }
    metrics_put(p, "%s_bucket{%s,le=\"+Inf\"} %llu\n%s_sum{%s} %.17g\n%s_count{%s} %llu\n", name,
                labels, (unsigned long long)h->n, name, labels, h->sum, name, labels,
                (unsigned long long)h->n);
}

/* Writes the histogram at @at of struct metrics: of each model, except the one of the loop. */
static void histogram(struct page *p, const char *name, const char *help,
                      const struct metrics *loop, size_t at) {
    bool of_loop = strncmp(name, "weft_loop_", 10) == 0;

    head(p, name, "histogram", help);
    for (uint32_t i = 0; i < (of_loop ? 1 : p->n); i++) {
        const struct metrics *m = of_loop ? loop : &p->model[i]->metrics;

        put_buckets(p, name, p->labels[i], (const void *)((const char *)m + at));
    }
}

/* Writes the tokens of each worker's steps. */
static void put_step_rows(struct page *p) {
    const char *name = "vllm:iteration_tokens_total";

    head(p, name, "histogram", "Tokens computed in a step.");
    for (uint32_t m = 0; m < p->n; m++) {
        const struct msg_stats *s = &p->model[m]->worker;
        struct histogram h = {.bounds = step_rows_bounds, .sum = (double)s->n_rows};

        for (uint32_t i = 0; i < STEP_ROWS_BUCKETS; i++) {
            h.count[i] = s->step_rows[i];
            h.n += s->step_rows[i];
        }
        put_buckets(p, name, p->labels[m], &h);
    }
}

/* Writes the labels; quotes, backslashes and newlines in a value are escaped. */
static void set_labels(char out[300], const char *model) {
    size_t n = (size_t)snprintf(out, 300, "model_name=\"");

    for (; *model && n + 24 < 300; model++) {
        if (*model == '"' || *model == '\\')
            out[n++] = '\\';
        out[n++] = *model == '\n' ? ' ' : *model;
    }
    snprintf(out + n, 300 - n, "\",engine=\"0\"");
}

/* Collects the first model and each other model that has been loaded at least once. Returns 0 or
 * -ENOMEM; the caller frees the page with page_deinit(). */
static int page_init(struct page *p, const struct gen_env *env) {
    LIST_FOREACH_ENTRY(m, &env->models.list, const struct model, link) {
        if (p->n == MODELS_SHOWN)
            break;
        if (p->n == 0 || m->info->fingerprint)
            p->model[p->n++] = m;
    }
    p->labels = calloc(p->n, sizeof(*p->labels));
    for (uint32_t i = 0; i < p->n && p->labels; i++)
        set_labels(p->labels[i], p->model[i]->info->id);
    return enomem_unless(p->labels);
}

static bool metrics_is_alone(const struct model *m) {
    return m->env->models.list.next == m->env->models.list.prev;
}

/* Returns the generations in the running batch, as of the last statistics of the worker. */
static double n_in_batch(const struct model *m) {
    if (!m->has_stats)
        return m->n_running;
    return MIN(m->worker.n_running, m->n_running);
}

/* Counts the requests that wait in the worker and in the front: for a place, or for the model. */
static double n_waiting(const struct model *m) {
    uint32_t n = 0;

    LIST_FOREACH(node, &m->waiting)
    n++;
    if (metrics_is_alone(m)) {
        n += m->env->admit.n_queued;
    } else {
        LIST_FOREACH_ENTRY(g, &m->env->gens.list, const struct gen, link) {
            n += g->model == m && g->state == GEN_WAITING;
        }
    }
    return n + m->n_running - n_in_batch(m);
}

static double kv_usage(const struct model *m) {
    if (!m->worker.n_pages)
        return 0;
    return (double)m->worker.n_used / m->worker.n_pages;
}

static double host_usage(const struct model *m) {
    if (!m->worker.n_host_pages)
        return 0;
    return (double)m->worker.n_host_held / m->worker.n_host_pages;
}

static double is_up(const struct model *m) {
    return m->worker_up;
}

/* Writes which of vLLM's states of sleep each model is in: one that sleeps has no memory here. */
static void put_sleep(struct page *p) {
    static const char *const states[] = {"awake", "weights_offloaded", "discard_all"};

    head(p, "vllm:engine_sleep_state", "gauge", "1 for the state that the model is in.");
    for (uint32_t m = 0; m < p->n; m++)
        for (uint32_t i = 0; i < ARRAY_SIZE(states); i++)
            metrics_put(p, "vllm:engine_sleep_state{%s,sleep_state=\"%s\"} %d\n", p->labels[m],
                        states[i], i == (model_asleep(p->model[m]) ? 2 : 0));
}

static double report_age_s(const struct model *m) {
    if (!m->has_stats)
        return -1;
    return (double)(clock_now(m->env->clock) - m->worker.at_ns) / 1e9;
}

/* Writes the workers' counters and the figures derived from them. */
static void put_workers(struct page *p) {
    /* Names for which readers of older versions of vLLM ask. */
    static const struct {
        const char *was, *is;
    } older[] = {
        {"vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
        {"vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"},
    };

    gauge_of_models(p, "vllm:num_requests_running", "Generations in the running batch.",
                    n_in_batch);
    gauge_of_models(p, "vllm:num_requests_waiting", "Generations that wait in the front.",
                    n_waiting);
    gauge_of_models(p, "vllm:kv_cache_usage_perc", "Used KV pages, 0 to 1.", kv_usage);
    gauge_of_models(p, "vllm:gpu_cache_usage_perc",
                    "Share of KV cache pages in use; the former name of vllm:kv_cache_usage_perc.",
                    kv_usage);
    gauge_of_models(p, "vllm:cpu_cache_usage_perc",
                    "Pages of host memory that requests hold, 0 to 1.", host_usage);
    head(p, "vllm:lora_requests_info", "gauge",
         "LoRA adapters (always none), for endpoint pickers. The value is the time.");
    metrics_put(p,
                "vllm:lora_requests_info{max_lora=\"0\",running_lora_adapters=\"\","
                "waiting_lora_adapters=\"\"} %lld\n",
                (long long)time(NULL));
    head(p, "vllm:cache_config_info", "gauge", "Size of the KV cache.");
    for (uint32_t i = 0; i < p->n; i++)
        metrics_put(p, "vllm:cache_config_info{%s,block_size=\"%u\",num_gpu_blocks=\"%u\"} 1\n",
                    p->labels[i], p->model[i]->info->page_tokens, p->model[i]->info->n_pages);
    for (size_t k = 0; k < n_worker_rows; k++)
        if (*worker_rows[k].metric)
            put_worker_row(p, worker_rows[k].metric, &worker_rows[k]);
    for (size_t i = 0; i < ARRAY_SIZE(older); i++)
        for (size_t k = 0; k < n_worker_rows; k++)
            if (strcmp(worker_rows[k].metric, older[i].is) == 0)
                put_worker_row(p, older[i].was, &worker_rows[k]);
    put_step_rows(p);
    put_by_source(p);
    put_by_device(p);
    put_sleep(p);
    gauge_of_models(p, "weft_worker_report_age_seconds",
                    "Age of the worker's statistics; -1: none yet.", report_age_s);
    if (model_on_demand(p->model[0]))
        gauge_of_models(p, "weft_model_loaded", "1 while a worker serves the model.", is_up);
}

static void put_generations(struct page *p, const struct metrics *loop) {
    static const char *const reasons[] = {"stop", "length", "abort", "tool_calls", "repetition"};

    head(p, "vllm:request_success_total", "counter", "Generations that ended, by reason.");
    for (uint32_t m = 0; m < p->n; m++)
        for (uint32_t i = 0; i < ARRAY_SIZE(reasons); i++)
            metrics_put(p, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n",
                        p->labels[m], reasons[i],
                        (unsigned long long)p->model[m]->metrics.success[i]);
#define PUT_HISTOGRAM(field, bounds, family, help)                                                 \
    histogram(p, family, help, loop, offsetof(struct metrics, field));
    METRICS_HISTOGRAMS(PUT_HISTOGRAM)
    /* AIBrix computes percentiles from the name that vLLM had before. */
    PUT_HISTOGRAM(between, between_bounds, "vllm:time_per_output_token_seconds",
                  "Time between tokens; the former name of vllm:inter_token_latency_seconds.")
}

/* Limit of tenants with lines of their own, those of the tenants file among them; the others share
 * one. */
#define TENANTS_NAMED 64

/* Returns the label of @t. Names of keys may have any character, so those that a label escapes are
 * replaced. */
static const char *metrics_label(const struct tenant *t, char out[64]) {
    size_t i = 0;

    for (; t->conf.name[i]; i++) {
        char c = t->conf.name[i];

        out[i] = c == '"' || c == '\\' || c == '\n' ? '_' : c;
    }
    out[i] = 0;
    return out;
}

/* Writes the value of tenant @i at the page's model @m: of the named tenants one line each, of the
 * others their sum behind the last. */
static void put_tenant(struct page *p, const struct tenants *ts, const struct stat_row *row,
                       uint32_t m, uint32_t i, uint64_t v, uint64_t *others) {
    char name[64];

    if (i < TENANTS_NAMED)
        metrics_put(p, "%s{%s,tenant=\"%s\"} %.17g\n", row->metric, p->labels[m],
                    metrics_label(ts->list[i], name), (double)v / row->per);
    else
        *others += v;
    if (i + 1 == ts->n && ts->n > TENANTS_NAMED)
        metrics_put(p, "%s{%s,tenant=\"(others)\"} %.17g\n", row->metric, p->labels[m],
                    (double)*others / row->per);
}

/* Returns true if each model counts the row for itself (bill.h, api_on_served()). */
static bool is_by_model(const struct stat_row *row) {
    return row->kind == STAT_COUNTER && strcmp(row->key, "limited") != 0;
}

/* Writes a counter of the tenants at model @m; the first model has lines of all tenants, others of
 * those that have used them. */
static void put_tenants_of_model(struct page *p, const struct tenants *ts,
                                 const struct stat_row *row, uint32_t m) {
    static const struct tenant_stats none;
    const struct model *model = p->model[m];
    uint64_t others = 0;

    loop_items(ts->n);
    for (uint32_t i = 0; i < ts->n; i++) {
        const struct tenant_stats *s = i < model->n_tenants ? &model->of_tenant[i] : &none;

        if (m == 0 || i >= TENANTS_NAMED || s->n_requests > 0 || s->device_ns > 0)
            put_tenant(p, ts, row, m, i, stat_whole(row, s), &others);
    }
}

/* Writes the figures of tenants. Those that are not of one model have the first one's name. */
static void put_tenants(struct page *p, const struct tenants *ts) {
    for (size_t k = 0; k < n_tenant_rows; k++) {
        const struct stat_row *row = &tenant_rows[k];
        uint64_t others = 0;

        if (!*row->metric)
            continue;
        head(p, row->metric, row->kind == STAT_COUNTER ? "counter" : "gauge", row->help);
        for (uint32_t m = 0; m < p->n && is_by_model(row); m++)
            put_tenants_of_model(p, ts, row, m);
        for (uint32_t i = 0; i < ts->n && !is_by_model(row); i++)
            put_tenant(p, ts, row, 0, i, stat_whole(row, &ts->list[i]->stats), &others);
    }
}

/* Writes the counters of fetched picture files by outcome. */
static void put_pictures(struct page *p, const struct picture_table *s) {
    const char *name = "weft_pictures_total";

    head(p, name, "counter", "Picture files of requests: decoded, or known from earlier ones.");
    metrics_put(p, "%s{result=\"decoded\"} %" PRIu64 "\n", name,
                (uint64_t)atomic_load(&s->n_decoded));
    metrics_put(p, "%s{result=\"known\"} %" PRIu64 "\n", name, (uint64_t)atomic_load(&s->n_known));
    name = "weft_pictures_refused_total";
    head(p, name, "counter", "Picture files that were refused, by reason.");
    for (int i = 0; i < PICTURE_REFUSALS; i++)
        metrics_put(p, "%s{reason=\"%s\"} %" PRIu64 "\n", name, picture_refusal_name[i],
                    (uint64_t)atomic_load(&s->n_refused[i]));
}

/* Writes llama-server's families for the first model; they have no labels. The time of a
 * generation's first token is part of the prompt's time. */
static void put_llamacpp(struct page *p, const struct gen_env *env) {
    const struct model *first = p->model[0];
    const struct metrics *m = &first->metrics;
    const struct msg_stats *w = &first->worker;
    double computed = (double)(first->n_prompt_tokens - first->n_cached_tokens);
    double decoded = m->output_tokens.sum - (double)m->output_tokens.n;
    double steps = MAX((double)w->n_steps, 1);
    const struct {
        const char *name, *type, *help;
        double v;
    } family[] = {
        {"prompt_tokens_total", "counter", "Prompt tokens computed.", computed},
        {"prompt_tokens_cached_total", "counter", "Prompt tokens found in the prefix cache.",
         (double)first->n_cached_tokens},
        {"prompt_seconds_total", "counter", "Time spent on prompts.", m->prefill.sum},
        {"tokens_predicted_total", "counter", "Output tokens.", (double)first->n_output_tokens},
        {"tokens_predicted_seconds_total", "counter", "Time spent on output.", m->decode.sum},
        {"n_decode_total", "counter", "Steps of the worker.", (double)w->n_steps},
        {"n_tokens_max", "counter", "Tokens of the longest generation.", first->n_tokens_max},
        {"spec_decode_num_draft_tokens_total", "counter", "Drafted tokens that were checked.",
         (double)w->n_drafted},
        {"spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were accepted.",
         (double)w->n_accepted},
        {"spec_decode_num_drafts_total", "counter", "Drafts that were checked.",
         (double)w->n_drafts},
        {"prompt_tokens_seconds", "gauge", "Prompt tokens computed per second of prompts.",
         m->prefill.sum > 0 ? computed / m->prefill.sum : 0},
        {"predicted_tokens_seconds", "gauge", "Output tokens per second of outputs.",
         m->decode.sum > 0 ? decoded / m->decode.sum : 0},
        {"requests_processing", "gauge", "Generations at the worker.", env->admit.n_running},
        {"requests_deferred", "gauge", "Generations that wait.", env->admit.n_queued},
        {"n_busy_slots_per_decode", "gauge", "Output tokens per step of the worker.",
         (double)w->n_output_tokens / steps},
        {"kv_cache_usage_ratio", "gauge", "Used KV pages, 0 to 1.",
         w->n_pages ? (double)w->n_used / w->n_pages : 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(family); i++) {
        char name[64];

        snprintf(name, sizeof(name), "llamacpp:%s", family[i].name);
        head(p, name, family[i].type, family[i].help);
        metrics_put(p, "%s %.17g\n", name, family[i].v);
    }
}

void metrics_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = TEXT_MAX};
    struct page p = {.out = &b};
    struct api_stats front;

    x->headers = env_of(x)->service->started_header;
    if (page_init(&p, env_of(x)) < 0) {
        respond_errno(x, -ENOMEM);
        return;
    }
    put_workers(&p);
    gauge(&p, "weft_serving", "1 while new requests are served.",
          service_health(env_of(x)) == API_SERVING);
    service_stats(env_of(x)->service, &front);
    for (size_t i = 0; i < n_front_rows; i++)
        if (*front_rows[i].metric)
            put_front_row(&p, &front_rows[i], &front);
    put_generations(&p, &env_of(x)->service->metrics);
    put_tenants(&p, &env_of(x)->tenants);
    put_pictures(&p, &env_of(x)->pictures);
    put_llamacpp(&p, env_of(x));
    free(p.labels);
    if (p.error < 0)
        respond_errno(x, p.error);
    else
        respond_taken(x, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}
