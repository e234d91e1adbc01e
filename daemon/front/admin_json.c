/*
 * Each document is built whole and written once. If memory is short, yyjson omits values and
 * continues; the allocator of json_doc_new() notes that, and admin_json_finish() checks it. Strings
 * are copied where they do not outlive the call. Lists are cut at fixed lengths, because an
 * operator reads them; /metrics has the sums.
 */

#include "daemon/front/admin_json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <yyjson.h>

#include "api/http/json_build.h"
#include "base/printable.h"

#define REQUESTS_MAX 4096
#define ENDED_MAX 100 /* requests of an answer to /requests/ended */
#define TENANTS_MAX 4096
#define RECORDS_MAX 256
#define USAGE_MAX (16u << 20) /* most bytes of an answer about use */

typedef yyjson_mut_doc doc_t;
typedef yyjson_mut_val val_t;

/* Returns the text of @d, which is freed. NULL: memory was short, now or while the document was
 * built. Paths in reasons may have bytes that are not UTF-8. */
static char *admin_json_finish(doc_t *d) {
    const bool *failed = d->alc.ctx;
    char *text = NULL;
    size_t len;

    if (!*failed)
        text = yyjson_mut_write(d, YYJSON_WRITE_ALLOW_INVALID_UNICODE, &len);
    yyjson_mut_doc_free(d);
    if (text)
        utf8_repair(text, len);
    return text;
}

/* Returns an empty object at the root of a new document of json_doc_new(). NULL: no memory. */
static doc_t *admin_json_begin(val_t **root, bool *failed) {
    doc_t *d = json_doc_new(failed);

    *root = d ? yyjson_mut_obj(d) : NULL;
    if (d)
        yyjson_mut_doc_set_root(d, *root);
    return d;
}

static void add_model(doc_t *d, val_t *root, const struct api_model *m) {
    val_t *o = yyjson_mut_obj_add_obj(d, root, "model");

    yyjson_mut_obj_add_strcpy(d, o, "id", m->id);
    yyjson_mut_obj_add_uint(d, o, "max_context", m->max_context);
    yyjson_mut_obj_add_uint(d, o, "n_pages", m->n_pages);
    yyjson_mut_obj_add_uint(d, o, "page_tokens", m->page_tokens);
}

/* Adds a member for each row of a table of proto/stats.h, so that a new row is shown without a line
 * here. */
static void admin_json_add_rows(doc_t *d, val_t *o, const struct stat_row *row, size_t n,
                                const void *stats) {
    for (; n > 0; n--, row++) {
        if (row->is_real)
            yyjson_mut_obj_add_real(d, o, row->key, stat_value(row, stats));
        else
            yyjson_mut_obj_add_uint(d, o, row->key, stat_whole(row, stats));
    }
}

static void add_front(doc_t *d, val_t *root, const struct api *api) {
    struct api_stats s;

    api_stats(api, &s);
    admin_json_add_rows(d, yyjson_mut_obj_add_obj(d, root, "front"), front_rows, n_front_rows, &s);
}

/* Adds the counters of each draft source; the names are those of the option draft-sources. */
static void add_drafts(doc_t *d, val_t *root, const struct msg_stats *s) {
    val_t *o = yyjson_mut_obj_add_obj(d, root, "drafts");

    for (size_t i = 0; i < MSG_DRAFT_SOURCES; i++) {
        val_t *source = yyjson_mut_obj_add_obj(d, o, msg_draft_source[i]);

        for (size_t k = 0; k < n_source_rows; k++)
            yyjson_mut_obj_add_uint(d, source, source_rows[k].key,
                                    stat_by_source(&source_rows[k], s)[i]);
    }
}

static void admin_json_add_devices(doc_t *d, val_t *root, const struct msg_stats *s) {
    val_t *all = yyjson_mut_obj_add_arr(d, root, "devices");

    for (uint32_t i = 0; i < MIN(s->n_devices, MSG_DEVICES); i++) {
        val_t *o = yyjson_mut_arr_add_obj(d, all);

        yyjson_mut_obj_add_uint(d, o, "device", s->device[i].number);
        admin_json_add_rows(d, o, device_rows, n_device_rows, &s->device[i]);
    }
}

/* Adds the front's view of the worker, then the worker's own statistics, which are age_ms old. */
static void add_worker(doc_t *d, val_t *root, const struct workers *workers) {
    val_t *o = yyjson_mut_obj_add_obj(d, root, "worker");
    struct workers_stats w;

    workers_stats(workers, &w);
    yyjson_mut_obj_add_str(d, o, "state", w.state);
    yyjson_mut_obj_add_int(d, o, "pid", w.pid);
    yyjson_mut_obj_add_uint(d, o, "starts", w.n_started);
    yyjson_mut_obj_add_str(d, o, "weights", w.weights);
    yyjson_mut_obj_add_uint(d, o, "deaths", w.n_deaths);
    yyjson_mut_obj_add_uint(d, o, "hangs", w.n_hangs);
    yyjson_mut_obj_add_int(d, o, "age_ms", w.stats_age_ms);
    admin_json_add_rows(d, o, worker_rows, n_worker_rows, &w.last);
    add_drafts(d, o, &w.last);
    admin_json_add_devices(d, o, &w.last);
}

static void add_bad_presets(doc_t *d, val_t *root, const struct models *models) {
    val_t *list = yyjson_mut_obj_add_arr(d, root, "presets_not_read");
    const char *name, *why;

    for (size_t i = 0; (name = models_bad_preset(models, i, &why)); i++) {
        val_t *o = yyjson_mut_arr_add_obj(d, list);

        yyjson_mut_obj_add_strcpy(d, o, "id", name);
        yyjson_mut_obj_add_strcpy(d, o, "reason", why);
    }
}

/* Adds an entry for each model, with the figures of its worker if it has one. */
static void add_models(doc_t *d, val_t *root, const struct models *models) {
    val_t *list = yyjson_mut_obj_add_arr(d, root, "models");

    yyjson_mut_obj_add_uint(d, root, "models_memory", models_budget(models));
    for (uint32_t i = 0; i < models_n(models); i++) {
        val_t *o = yyjson_mut_arr_add_obj(d, list);
        struct models_info m;

        models_info(models, i, &m);
        add_model(d, o, m.info);
        yyjson_mut_obj_add_strcpy(d, o, "id", m.name);
        yyjson_mut_obj_add_str(d, o, "state", m.state);
        if (*m.why)
            yyjson_mut_obj_add_strcpy(d, o, "reason", m.why);
        if (*m.swap)
            yyjson_mut_obj_add_strcpy(d, o, "swap", m.swap);
        yyjson_mut_obj_add_strcpy(d, o, "file", m.file);
        yyjson_mut_obj_add_uint(d, o, "bytes", m.bytes);
        if (m.memory)
            yyjson_mut_obj_add_uint(d, o, "memory_bytes", m.memory);
        yyjson_mut_obj_add_real(d, o, "progress", (double)m.progress);
        yyjson_mut_obj_add_bool(d, o, "pinned", m.pinned);
        yyjson_mut_obj_add_uint(d, o, "running", m.n_running);
        yyjson_mut_obj_add_uint(d, o, "waiting", m.n_waiting);
        yyjson_mut_obj_add_uint(d, o, "loads", m.n_loads);
        yyjson_mut_obj_add_int(d, o, "idle_ms", m.idle_ms);
        yyjson_mut_obj_add_int(d, o, "unload_ms", m.unload_ms);
        add_worker(d, o, m.workers);
    }
}

char *admin_json_models(const struct admin_opts *o) {
    val_t *root;
    bool failed = false;
    doc_t *d = admin_json_begin(&root, &failed);

    if (!d)
        return NULL;
    add_models(d, root, o->models);
    add_bad_presets(d, root, o->models);
    return admin_json_finish(d);
}

/* Describes the first model that is loaded, else the first. */
static void admin_json_pick(const struct models *models, struct models_info *out) {
    for (uint32_t i = 0; i < models_n(models); i++) {
        models_info(models, i, out);
        if (out->memory)
            return;
    }
    models_info(models, 0, out);
}

char *admin_json_stats(const struct admin_opts *o) {
    struct models_info first;
    val_t *root;
    bool failed = false;
    doc_t *d = admin_json_begin(&root, &failed);

    if (!d)
        return NULL;
    yyjson_mut_obj_add_str(d, root, "version", WEFT_VERSION);
    yyjson_mut_obj_add_int(d, root, "uptime_s", (clock_now(o->clock) - o->started_ns) / 1000000000);
    yyjson_mut_obj_add_str(d, root, "health", o->health(o->ctx));
    admin_json_pick(o->models, &first);
    add_model(d, root, first.info);
    add_front(d, root, o->api);
    add_worker(d, root, first.workers);
    if (models_budget(o->models))
        add_models(d, root, o->models);
    return admin_json_finish(d);
}

/* Adds the number of a session as text, because many readers of JSON have only doubles. */
static void add_session(doc_t *d, val_t *v, const struct api_request_info *r) {
    char hex[20];

    snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)r->session);
    yyjson_mut_obj_add_strcpy(d, v, "session", r->session ? hex : "-");
    yyjson_mut_obj_add_str(d, v, "session_from", r->session_from ? r->session_from : "-");
}

char *admin_json_requests(const struct admin_opts *o) {
    CLEANUP(freep) struct api_request_info *r = calloc(REQUESTS_MAX, sizeof(*r));
    val_t *root;
    bool failed = false;
    doc_t *d = admin_json_begin(&root, &failed);

    if (!d || !r) {
        yyjson_mut_doc_free(d);
        return NULL;
    }
    val_t *list = yyjson_mut_obj_add_arr(d, root, "requests");
    uint32_t n = api_requests(o->api, r, REQUESTS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        val_t *v = yyjson_mut_arr_add_obj(d, list);

        yyjson_mut_obj_add_uint(d, v, "id", r[i].id);
        /* the string stays valid until admin_json_finish() */
        yyjson_mut_obj_add_str(d, v, "request_id", r[i].request_id);
        yyjson_mut_obj_add_str(d, v, "endpoint", r[i].endpoint);
        yyjson_mut_obj_add_str(d, v, "state", r[i].state);
        yyjson_mut_obj_add_uint(d, v, "prompt_tokens", r[i].n_prompt);
        yyjson_mut_obj_add_uint(d, v, "output_tokens", r[i].n_output);
        yyjson_mut_obj_add_uint(d, v, "cached_tokens", r[i].n_cached);
        yyjson_mut_obj_add_uint(d, v, "prompt_tokens_done", r[i].n_done);
        yyjson_mut_obj_add_uint(d, v, "max_tokens", r[i].max_new);
        yyjson_mut_obj_add_str(d, v, "waits_for", r[i].waits_for);
        if (r[i].expect_ms >= 0)
            yyjson_mut_obj_add_int(d, v, "expected_ms", r[i].expect_ms);
        yyjson_mut_obj_add_int(d, v, "age_ms", r[i].age_ms);
        add_session(d, v, &r[i]);
    }
    return admin_json_finish(d);
}

char *admin_json_ended(const struct admin_opts *o, const struct api_ended_filter *f, int *r) {
    CLEANUP(freep) struct api_ended_info *q = calloc(ENDED_MAX, sizeof(*q));
    val_t *root;
    bool failed = false;
    doc_t *d = admin_json_begin(&root, &failed);

    *r = d && q ? api_ended(o->api, f, q, ENDED_MAX) : -ENOMEM;
    if (*r < 0) {
        yyjson_mut_doc_free(d);
        return NULL;
    }
    uint32_t n = (uint32_t)*r;
    val_t *list = yyjson_mut_obj_add_arr(d, root, "requests");
    for (uint32_t i = 0; i < n; i++) {
        val_t *v = yyjson_mut_arr_add_obj(d, list);

        /* the strings stay valid until admin_json_finish() */
        yyjson_mut_obj_add_str(d, v, "request_id", q[i].request_id);
        yyjson_mut_obj_add_str(d, v, "tenant", q[i].tenant);
        yyjson_mut_obj_add_str(d, v, "endpoint", q[i].endpoint);
        yyjson_mut_obj_add_int(d, v, "status", q[i].status);
        yyjson_mut_obj_add_str(d, v, "finish", q[i].finish);
        yyjson_mut_obj_add_uint(d, v, "prompt_tokens", q[i].n_prompt);
        yyjson_mut_obj_add_uint(d, v, "cached_tokens", q[i].n_cached);
        yyjson_mut_obj_add_uint(d, v, "output_tokens", q[i].n_output);
        yyjson_mut_obj_add_int(d, v, "queue_ms", q[i].queue_ms);
        yyjson_mut_obj_add_int(d, v, "ttft_ms", q[i].ttft_ms);
        yyjson_mut_obj_add_int(d, v, "total_ms", q[i].total_ms);
        yyjson_mut_obj_add_int(d, v, "ago_ms", q[i].ago_ms);
    }
    return admin_json_finish(d);
}

/* Adds one decision about a request; times count from its arrival. */
static void add_record(doc_t *d, val_t *list, const struct flight_record *r, int64_t begin_ns) {
    static const char *const ends[] = {"none", "stop", "length", "cancelled", "deadline", "error"};
    val_t *v = yyjson_mut_arr_add_obj(d, list);

    yyjson_mut_obj_add_str(d, v, "why", flight_name(r->why));
    yyjson_mut_obj_add_str(d, v, "text", flight_text(r->why));
    yyjson_mut_obj_add_real(d, v, "at_ms", (double)((r->from_ns - begin_ns) / 1000) / 1000);
    yyjson_mut_obj_add_real(d, v, "ms", (double)((r->until_ns - r->from_ns) / 1000) / 1000);
    yyjson_mut_obj_add_uint(d, v, "steps", r->n_steps);
    yyjson_mut_obj_add_uint(d, v, "rows", r->n_rows);
    if (r->why == WHY_PROMPT || r->why == WHY_TIME)
        yyjson_mut_obj_add_uint(d, v, "row_us", r->detail);
    if (r->why == WHY_ADMITTED)
        yyjson_mut_obj_add_uint(d, v, "cached_tokens", r->detail);
    if (r->why == WHY_PREEMPTED)
        yyjson_mut_obj_add_uint(d, v, "pages", r->detail);
    if (r->why == WHY_ENDED)
        yyjson_mut_obj_add_str(d, v, "finish", ends[MIN(r->detail, ARRAY_SIZE(ends) - 1)]);
}

char *admin_json_why(const struct admin_opts *o, uint64_t id, bool *known) {
    struct flight_record told[RECORDS_MAX], r[RECORDS_MAX + API_STORY_MORE];
    int64_t begin_ns;
    uint32_t n = 0;

    for (uint32_t i = 0; i < models_n(o->models) && n == 0; i++) {
        struct models_info m;

        models_info(o->models, i, &m);
        n = flight_story(workers_flight(m.workers), id, told, RECORDS_MAX);
    }
    n = api_story(o->api, id, told, n, r, &begin_ns);
    char now[300];
    bool waits = api_wait_text(o->api, id, now, sizeof(now));
    bool failed = false;
    val_t *root;
    doc_t *d;

    *known = n > 0 || waits;
    if (!*known || !(d = admin_json_begin(&root, &failed)))
        return NULL;
    yyjson_mut_obj_add_uint(d, root, "id", id);
    yyjson_mut_obj_add_int(d, root, "age_ms",
                           begin_ns ? (clock_now(o->clock) - begin_ns) / 1000000 : 0);
    if (waits)
        yyjson_mut_obj_add_strcpy(d, root, "now", now);
    if (*api_left_out(o->api, id))
        yyjson_mut_obj_add_strcpy(d, root, "not_enforced", api_left_out(o->api, id));
    val_t *list = yyjson_mut_obj_add_arr(d, root, "records");
    for (uint32_t i = 0; i < n; i++)
        add_record(d, list, &r[i], begin_ns);
    return admin_json_finish(d);
}

char *admin_json_tenants(const struct admin_opts *o) {
    static const char *const classes[] = {"normal", "interactive", "batch"};
    CLEANUP(freep) struct api_tenant_info *t = calloc(TENANTS_MAX, sizeof(*t));
    val_t *root;
    bool failed = false;
    doc_t *d = admin_json_begin(&root, &failed);

    if (!d || !t) {
        yyjson_mut_doc_free(d);
        return NULL;
    }
    val_t *list = yyjson_mut_obj_add_arr(d, root, "tenants");
    uint32_t n = api_tenants(o->api, t, TENANTS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        val_t *v = yyjson_mut_arr_add_obj(d, list);

        yyjson_mut_obj_add_strcpy(d, v, "tenant", t[i].name);
        yyjson_mut_obj_add_real(d, v, "weight", t[i].weight);
        yyjson_mut_obj_add_str(d, v, "class", classes[MIN(t[i].class, 2u)]);
        admin_json_add_rows(d, v, tenant_rows, n_tenant_rows, &t[i].stats);
    }
    return admin_json_finish(d);
}

char *admin_json_usage(const struct admin_opts *o) {
    CLEANUP(buf_deinit) struct buf b = {.max = USAGE_MAX};

    return api_usage(o->api, &b) < 0 ? NULL : STEAL(b.data);
}

char *admin_json_health(const struct admin_opts *o) {
    struct models_info first;
    struct workers_stats w;
    val_t *root;
    bool failed = false;
    doc_t *d = admin_json_begin(&root, &failed);

    if (!d)
        return NULL;
    admin_json_pick(o->models, &first);
    workers_stats(first.workers, &w);
    yyjson_mut_obj_add_str(d, root, "health", o->health(o->ctx));
    yyjson_mut_obj_add_str(d, root, "worker", w.state);
    if (*w.failure)
        yyjson_mut_obj_add_strcpy(d, root, "reason", w.failure);
    if (*o->url)
        yyjson_mut_obj_add_strcpy(d, root, "url", o->url);
    return admin_json_finish(d);
}
