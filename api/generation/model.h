#pragma once

/*
 * model - a model that requests may name: its description by daemon/ (struct api_model), the
 * properties of its chat template, the port to its worker, and the state of that worker.
 *
 *      ABSENT ──> LOADING ──> READY ──> UNLOADING ──> ABSENT
 *                    └──> FAILED ──> LOADING
 *
 * READY outlasts the worker: one that dies is replaced, and what waits for that waits as
 * generations. A model whose port has no want() is there from the beginning to the end, and its
 * state is not looked at; for one that has, prompt jobs wait until it is READY (model_wait.h).
 *
 * Which fields change: `info` points to what the daemon fills in when the model is opened and when
 * a worker is ready; names are fixed. `opened`, `state` and all before them may be read by the
 * pool's threads: what depends on `opened`, most of `info` too, does not change once that is true.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/api.h"
#include "api/generation/family.h"
#include "api/generation/fim.h"
#include "api/generation/metrics.h"
#include "api/generation/sight.h"
#include "api/limits/pending.h"
#include "base/list.h"

struct model {
    /* api.models */
    struct list link;
    struct gen_env *env;
    const struct api_model *info;
    /* Copies of the pointers in `info`, which any thread reads before the model is opened. */
    const char *id;
    const char *const *aliases;
    struct family family;
    struct fim fim;
    struct sight sight;
    /* tokenizer and template are available */
    atomic_bool opened;
    /* enum api_model_state */
    atomic_int state;

    struct api_port *port;
    bool worker_up;
    /* the way to the worker is full: pending generations wait for room */
    bool crowded;
    /* gen.pending: PENDING ones that are sent at once, and those that are sent in parts */
    struct pending whole, large;
    /* of its submit, a part is sent (gen.sent): it is in no queue; or NULL */
    struct gen *half;
    /* why no worker can be started; "": no failure is known */
    char failure[400];
    /* time after failed_ns until the next try */
    uint32_t failure_retry_ms;
    int64_t failed_ns;
    /* the worker's last report; zeroed before the first */
    struct msg_stats worker;
    bool has_stats;
    /* generations that were or will be submitted to the worker */
    uint32_t n_running;
    /* prompt jobs for this model */
    uint32_t n_jobs;
    /* prompt_job.waiting: until it is READY */
    struct list waiting;
    /* progress of loading, 0 to 1 */
    float progress;
    /* metrics of the model's generations */
    struct metrics metrics;
    /* longest generation so far, prompt and output together */
    uint32_t n_tokens_max;
    /* the model's share of the sums in struct api_stats */
    uint64_t n_prompt_tokens, n_cached_tokens, n_output_tokens;
    /* [n_tenants], by tenant.number: counters of this model */
    struct tenant_stats *of_tenant;
    uint32_t n_tenants;
    /* when a request last named it, or a generation of it ended */
    int64_t last_used_ns;
    /* see struct api_model_use */
    int64_t keep_alive_s;
};

/* Returns the counters of @m for the tenant @number; NULL: out of memory. */
struct tenant_stats *model_of_tenant(struct model *m, uint32_t number);
/* 0 or -ENOMEM. */
int model_new(struct model **out, struct gen_env *env, const struct api_model *info,
              struct api_port *port);
/* Frees @m, which no generation and no prompt job uses; NULL is accepted. Returns NULL. */
struct model *model_free(struct model *m);
/* Derives the members that follow from tokenizer and template, which info has now. */
void model_open(struct model *m);
/* Returns true if @name is the model's, or one of its aliases; an alias that ends with "*" stands
 * for all names that begin with it. Runs on any thread. */
bool model_has_name(const struct model *m, const char *name, size_t len);
/* Returns true if chats with the model may have tools. One that has not been opened will have a
 * template, if only the usual one. */
static inline bool model_allows_tools(const struct model *m) {
    return !m->info->encoder && (m->info->template || !m->opened);
}

/* Returns true if the model writes reasoning; for a model that was not opened, by its header. */
static inline bool model_reasons(const struct model *m) {
    if (m->opened)
        return m->family.reasons;
    return m->info->reasons;
}

/* Returns whether the model reasons in requests that do not say so: "on", "off" or "template", if
 * that depends on the template; NULL: it never reasons. */
const char *model_reasoning(const struct model *m);

/* Returns true if the model takes pictures; for a model that was not opened, by its header. */
static inline bool model_sees(const struct model *m) {
    if (m->opened)
        return *m->sight.text != 0;
    return m->info->sees;
}

/* Returns true if the model is loaded when a request needs it, and may be unloaded. */
static inline bool model_on_demand(const struct model *m) {
    return m->port->want != NULL;
}

/* Returns true if no worker holds memory for @m. */
static inline bool model_asleep(const struct model *m) {
    return model_on_demand(m) && (m->state == API_MODEL_ABSENT || m->state == API_MODEL_FAILED);
}
/* Fills @err with a 503: no worker of @m can be started, and the reason. Returns -EINVAL. */
int model_unavailable(const struct model *m, const char *param, struct err *err);
/* Returns the name of the state in llama-server's router API. */
const char *model_state_name(const struct model *m);
/* Returns the format of the weights that the file's name has ("Q4_K_M"); "": none. */
const char *model_format_name(const struct model *m, char out[32]);
/* Returns its number of parameters in Ollama's form ("7.6B", "25.83M"); "": unknown. */
const char *model_size_name(const struct model *m, char out[32]);
