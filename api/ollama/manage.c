/*
 * Changes of models by Ollama's clients: pull, create, copy, delete. The daemon makes them
 * (api_opts.manage); this file checks the right to, reads the bodies and writes the answers. An
 * exchange waits for its task; if its client leaves the task is cancelled, which leaves a pull
 * where it is: the next one goes on. The body of a create, which may have a template and a system
 * message of 1 MiB each, is read on the pool of jobs.
 */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/audit.h"
#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/models.h"
#include "api/http/conn.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/ollama/ollama.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

#define BODY_MAX (8u << 10) /* bytes that are read on the loop */
#define TEXT_MAX (1u << 20) /* bytes of a template, or of a system message */
#define SAMPLING_MAX 1000

/* The state of an exchange unless x is NULL. The task belongs to the daemon from began() until it
 * is over or was cancelled; `create` is set while the body is read. */
struct manage {
    struct api_task task;
    /* NULL: the client left while the body is read */
    struct exchange *x;
    bool streams;
    /* the answer has no body */
    bool bare;
    struct create *create;
};

/* The body of a create on the pool. */
struct create {
    struct job job;
    struct manage *of;
    struct buf body;
    struct quota_charge charge;
    yyjson_doc *doc;
    /* points into the document; `from` as the body has it */
    struct api_preset preset;
    char sampling[SAMPLING_MAX];
    int result;
    struct err err;
};

/* ---- the exchange ---- */

static void ollama_manage_abandon(struct exchange *x, void *state) {
    const struct api_opts *o = &env_of(x)->opts;
    struct manage *m = state;

    assert(m->x == x);
    if (m->create) { /* ollama_manage_on_read() frees it */
        job_pool_abandon(&env_of(x)->pool, &m->create->job);
        m->x = NULL;
        return;
    }
    o->manage->cancel(o->models_ctx, &m->task);
    free(m);
}

static void succeed(struct exchange *x, bool streams, bool bare) {
    static const char text[] = "{\"status\":\"success\"}";

    if (streams && !bare) {
        if (!x->stream)
            respond_stream(x);
        respond_event(x, text, sizeof(text) - 1);
        respond_stream_end(x);
    } else {
        respond(x, 200, bare ? NULL : RESPOND_JSON, text, bare ? 0 : sizeof(text) - 1);
    }
}

/* The callback api_task.over: answers the exchange with the result of the task. */
static void ollama_manage_on_over(struct api_task *t, const struct err *err) {
    static const char before[] = "{\"status\":\"writing manifest\"}";
    struct manage *m = CONTAINER_OF(t, struct manage, task);
    bool bare = m->bare, streams = m->streams;
    struct exchange *x = m->x;

    assert(!m->create);
    free(exchange_detach(x));
    if (err) {
        struct err copy = *err;

        copy.status = copy.status ? copy.status : 500;
        respond_failure(x, &copy);
    } else {
        if (streams && !bare && !x->stream) { /* a preset was made */
            respond_stream(x);
            respond_event(x, before, sizeof(before) - 1);
        }
        succeed(x, streams, bare);
    }
}

/* ---- progress ---- */

/* Writes the fields from which Ollama's clients draw progress bars: one bar for each digest. */
static void put_bar(struct json *j, yyjson_val *v, const char *status) {
    const char *sha = json_cstr(yyjson_obj_get(v, "sha256"));
    const char *file = json_cstr(yyjson_obj_get(v, "file"));
    char text[200], digest[200];

    snprintf(digest, sizeof(digest), "%s%.128s", sha ? "sha256:" : "", sha ? sha : file);
    if (strcmp(status, "checking") == 0)
        snprintf(text, sizeof(text), "verifying sha256 digest");
    else
        snprintf(text, sizeof(text), "pulling %.*s", sha ? 12 : 128, sha ? sha : file);
    json_print(j, "status:%s, digest:%s, total:%ld, completed:%ld", text, digest,
               yyjson_get_sint(yyjson_obj_get(v, "file_total")),
               yyjson_get_sint(yyjson_obj_get(v, "file_completed")));
}

/* The callback api_task.line: sends the progress of a pull as Ollama's clients know it. */
static void on_line(struct api_task *t, const char *text, size_t len) {
    struct manage *m = CONTAINER_OF(t, struct manage, task);
    CLEANUP(buf_deinit) struct buf b = {.max = 64u << 10};
    yyjson_doc *doc = yyjson_read(text, len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc);
    const char *status = json_cstr(yyjson_obj_get(root, "status"));
    const char *message = json_cstr(yyjson_obj_get(root, "message"));
    struct json j = {.out = &b};

    assert(m->x && m->x->state == m);
    if (m->x->stream && status && (message || json_cstr(yyjson_obj_get(root, "file")))) {
        json_open(&j, '{');
        if (message)
            json_print(&j, "status:%s", message);
        else
            put_bar(&j, root, status);
        json_close(&j, '}');
        if (j.error == 0) {
            respond_event(m->x, b.data, b.len);
            conn_flush(m->x->conn);
        }
    }
    yyjson_doc_free(doc);
}

/* ---- requests ---- */

int ollama_read_body(struct exchange *x, yyjson_doc **out, struct err *err) {
    CLEANUP(buf_deinit) struct buf body = {0};
    struct quota_charge charge;

    conn_steal_body(x->conn, &body, &charge);
    quota_charge_set(&charge, 0);
    if (body.len > BODY_MAX)
        return err_set_code(err, 413, "body_too_large", NULL,
                            "The request body is larger than %u bytes.", BODY_MAX);
    return json_read(out, body.data, body.len, err);
}

/* Checks that the client may manage models, and that there are models to manage. */
static int check_right(const struct exchange *x, struct err *err) {
    int r = models_check_right(x, err);

    if (r < 0 || env_of(x)->opts.manage)
        return r;
    return err_set_code(err, 400, "not_managed", NULL,
                        "models cannot be changed: this service has no folder of models "
                        "(models-dir, models)");
}

int ollama_read_name(yyjson_val *root, const char *key, const char *old, const char **out,
                     struct err *err) {
    yyjson_val *v = yyjson_obj_get(root, key);

    v = yyjson_is_str(v) || !old ? v : yyjson_obj_get(root, old);
    *out = json_cstr(v);
    if (!yyjson_is_str(v))
        return err_set_code(err, 400, "invalid_value", key, "%s is required", key);
    if (!*out)
        return err_set_code(err, 400, "invalid_value", key, "%s must not contain NUL", key);
    return 0;
}

/* Cuts the default tag ":latest" off @name, in the document's own memory. */
static const char *untag(const char *name) {
    static const char tag[] = ":latest";
    size_t n = strlen(name), k = sizeof(tag) - 1;

    if (n > k && strcmp(name + n - k, tag) == 0)
        ((char *)(uintptr_t)name)[n - k] = 0;
    return name;
}

/* Returns a new task of @x; NULL if there is no memory. */
static struct manage *new_task(struct exchange *x) {
    struct manage *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    m->x = x;
    m->task.line = on_line;
    m->task.over = ollama_manage_on_over;
    return m;
}

static bool wants_stream(yyjson_val *root) {
    return !yyjson_is_false(yyjson_obj_get(root, "stream"));
}

/* Handles the result @r of beginning the task: an error is answered at once. */
static void began(struct exchange *x, struct manage *m, int r, const struct err *err) {
    static const struct exchange_ops ops = {.abandon = ollama_manage_abandon};

    assert(r < 0 || m->x == x);
    exchange_detach(x); /* while a body was read, it had the state */
    if (r < 0) {
        free(m);
        respond_failed(x, r, err);
        return;
    }
    exchange_attach(x, &ops, m);
}

enum { PULL_SERVED = 1 }; /* the model is on this machine already */

/* Starts the download that the body of @x names. Returns 0, PULL_SERVED or -errno; @streams is set
 * when the body was read. */
static int start_pull(struct exchange *x, struct manage **m, bool *streams, struct err *err) {
    const struct api_opts *o = &env_of(x)->opts;
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    const char *name = NULL;

    TRY(ollama_read_body(x, &doc, err));
    yyjson_val *root = yyjson_doc_get_root(doc);
    *streams = wants_stream(root);
    TRY(ollama_read_name(root, "model", "name", &name, err));
    if (models_find(env_of(x), name, strlen(name)))
        return PULL_SERVED;
    TRY(check_right(x, err));
    *m = new_task(x);
    int r = *m ? o->manage->pull(o->models_ctx, name, &(*m)->task, err) : -ENOMEM;
    audit_client(x, "pull", name, r, err);
    return r;
}

void ollama_pull_serve(struct exchange *x, struct http *h) {
    static const char first[] = "{\"status\":\"pulling manifest\"}";
    struct manage *m = NULL;
    struct err err = {0};
    bool streams = false;
    int r = start_pull(x, &m, &streams, &err);

    if (r == PULL_SERVED) {
        succeed(x, streams, false);
        return;
    }
    began(x, m, r, &err);
    if (r < 0 || !streams)
        return;
    m->streams = true;
    respond_stream(x);
    respond_event(x, first, sizeof(first) - 1);
    conn_flush(x->conn);
}

/* Writes a number as the option `sampling` takes it, a whole one exactly. Returns as snprintf(). */
static int print_number(char *out, size_t size, yyjson_val *v) {
    int64_t whole;

    if (yyjson_is_uint(v))
        return snprintf(out, size, "%" PRIu64, yyjson_get_uint(v));
    if (json_whole(v, &whole))
        return snprintf(out, size, "%" PRId64, whole);
    return snprintf(out, size, "%.9g", yyjson_get_num(v));
}

/* Writes "temperature=0.7,top_k=20" of Ollama's parameters into @out, and parameters of other kinds
 * into @p. */
static int read_parameters(yyjson_val *v, char out[SAMPLING_MAX], struct api_preset *p,
                           struct err *err) {
    static const char *const rows[][2] = {
        {"temperature", "temperature"},
        {"top_k", "top_k"},
        {"top_p", "top_p"},
        {"min_p", "min_p"},
        {"seed", "seed"},
        {"repeat_penalty", "repetition_penalty"},
        {"presence_penalty", "presence_penalty"},
        {"frequency_penalty", "frequency_penalty"},
    };
    struct sampling checked;
    size_t len = 0;

    *out = 0;
    params_init(&checked);
    if (v && !yyjson_is_obj(v))
        return err_set_code(err, 400, "invalid_value", "parameters",
                            "parameters must be an object");
    JSON_MEMBERS(key, value, v) {
        const char *name = json_cstr(key), *ours = NULL;

        name = text_or(name, ""); /* a name with a NUL is no known one */

        for (size_t k = 0; k < ARRAY_SIZE(rows); k++)
            if (strcmp(rows[k][0], name) == 0)
                ours = rows[k][1];
        bool is_context = strcmp(name, "num_ctx") == 0;
        int64_t whole = 0;
        bool is_whole = json_whole(value, &whole) || yyjson_is_uint(value);
        if (!ours && !is_context)
            return err_set_code(err, 400, "unsupported", "parameters",
                                "parameters.%.40s cannot be stored in a preset", name);
        if (!yyjson_is_num(value) || !isfinite(yyjson_get_num(value)) ||
            (is_context && (!is_whole || whole < 1 || whole > INT32_MAX)) ||
            (strcmp(name, "seed") == 0 && !is_whole))
            return err_set_code(err, 400, "invalid_value", "parameters",
                                "parameters.%.40s must be a number in its range", name);
        if (is_context) {
            p->max_context = (uint32_t)whole;
            continue;
        }
        const struct param *param = params_find(ours);
        if (param)
            TRY(params_set(&checked, param, yyjson_get_num(value), err));
        len += (size_t)snprintf(out + len, SAMPLING_MAX - len, "%s%s=", len ? "," : "", ours);
        if (len < SAMPLING_MAX)
            len += (size_t)print_number(out + len, SAMPLING_MAX - len, value);
        if (len >= SAMPLING_MAX)
            return err_set_code(err, 400, "invalid_value", "parameters",
                                "parameters must be shorter: a preset has room for fewer of them");
    }
    p->sampling = *out ? out : NULL;
    return 0;
}

/* Reads a text. One that is left out, or empty, is that of the base. */
static int ollama_manage_read_text(yyjson_val *root, const char *key, const char **out,
                                   struct err *err) {
    yyjson_val *v = json_given(root, key);

    if (!v || yyjson_equals_str(v, ""))
        return 0;
    if (!json_cstr(v) || json_len(v) > TEXT_MAX)
        return err_set_code(err, 400, "invalid_value", key,
                            "%s must be a string of at most 1 MiB without NUL", key);
    *out = json_cstr(v);
    return 0;
}

static int ollama_manage_read_preset(yyjson_val *root, struct create *c) {
    static const char *const others[] = {"files", "adapters", "quantize", "messages", "modelfile"};
    struct api_preset *p = &c->preset;

    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        yyjson_val *v = yyjson_obj_get(root, others[i]);

        if (!json_is_empty(v))
            return err_set_code(
                &c->err, 400, "unsupported", others[i],
                "%s is not supported: a model is made from a served one, which `from` names",
                others[i]);
    }
    TRY(ollama_read_name(root, "model", "name", &p->name, &c->err));
    TRY(ollama_read_name(root, "from", NULL, &p->from, &c->err));
    p->name = untag(p->name);
    TRY(ollama_manage_read_text(root, "template", &p->template, &c->err));
    TRY(ollama_manage_read_text(root, "system", &p->system, &c->err));
    return read_parameters(json_given(root, "parameters"), c->sampling, p, &c->err);
}

/* ---- create ---- */

static void ollama_manage_on_thread(struct job *j) {
    struct create *c = CONTAINER_OF(j, struct create, job);

    c->result = json_read(&c->doc, c->body.data, c->body.len, &c->err);
    if (c->result == 0)
        c->result = ollama_manage_read_preset(yyjson_doc_get_root(c->doc), c);
    c->of->streams = wants_stream(yyjson_doc_get_root(c->doc));
}

static void create_free(struct create *c) {
    assert(c->of->create == c);
    c->of->create = NULL;
    yyjson_doc_free(c->doc);
    buf_deinit(&c->body);
    quota_charge_set(&c->charge, 0);
    free(c);
}

static void ollama_manage_on_read(struct job *j) {
    struct create *c = CONTAINER_OF(j, struct create, job);
    struct manage *m = c->of;
    struct exchange *x = m->x;
    struct err err = c->err;
    const struct model *from;
    int r = c->result;

    if (x && r == 0)
        r = ollama_find_served(x, c->preset.from, "from", &from, &err);
    if (x && r == 0) {
        const struct api_opts *o = &env_of(x)->opts;

        c->preset.from = from->info->id;
        r = o->manage->create(o->models_ctx, &c->preset, &m->task, &err);
        audit_client(x, "create", c->preset.name, r, &err);
    }
    create_free(c);
    if (x)
        began(x, m, r, &err);
    else
        free(m);
}

/* Gives the body to the pool. Returns 0 or -ENOMEM. */
static int read_on_pool(struct exchange *x, struct manage *m) {
    struct create *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    m->create = c;
    c->of = m;
    c->job.run = ollama_manage_on_thread;
    c->job.done = ollama_manage_on_read;
    c->result = -ECANCELED; /* unless the job runs */
    conn_steal_body(x->conn, &c->body, &c->charge);
    int r = job_pool_submit(&env_of(x)->pool, &c->job, tenants_get(&env_of(x)->tenants, x->tenant));
    if (r < 0)
        create_free(c);
    return r;
}

static int start_create(struct exchange *x, struct manage **m, struct err *err) {
    TRY(check_right(x, err));
    *m = new_task(x);
    if (!*m)
        return -ENOMEM;
    return read_on_pool(x, *m);
}

void ollama_create_serve(struct exchange *x, struct http *h) {
    struct manage *m = NULL;
    struct err err = {0};
    int r = start_create(x, &m, &err);

    began(x, m, r, &err);
}

/* ---- copy, delete ---- */

/* Begins the operation of a path. Returns 0 or negative with @err; then @t is not taken. */
typedef int (*begin_fn)(struct exchange *x, yyjson_val *root, struct api_task *t, struct err *err);

static int begin_copy(struct exchange *x, yyjson_val *root, struct api_task *t, struct err *err) {
    const struct api_opts *o = &env_of(x)->opts;
    struct api_preset preset = {0};
    const char *source = NULL;
    const struct model *from;

    TRY(ollama_read_name(root, "source", NULL, &source, err));
    TRY(ollama_find_served(x, source, "source", &from, err));
    TRY(ollama_read_name(root, "destination", NULL, &preset.name, err));
    preset.name = untag(preset.name);
    preset.from = from->info->id;
    int r = o->manage->create(o->models_ctx, &preset, t, err);
    return audit_client(x, "create", preset.name, r, err);
}

static int begin_delete(struct exchange *x, yyjson_val *root, struct api_task *t, struct err *err) {
    const struct api_opts *o = &env_of(x)->opts;
    const struct model *m;
    const char *name = NULL;

    TRY(ollama_read_name(root, "model", "name", &name, err));
    TRY(ollama_find_served(x, name, "model", &m, err));
    int r = o->manage->remove(o->models_ctx, m->info->id, t, err);
    return audit_client(x, "delete", m->info->id, r, err);
}

static int start_change(struct exchange *x, begin_fn begin, struct manage **m, struct err *err) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;

    TRY(check_right(x, err));
    TRY(ollama_read_body(x, &doc, err));
    *m = new_task(x);
    if (!*m)
        return -ENOMEM;
    (*m)->bare = true;
    return begin(x, yyjson_doc_get_root(doc), &(*m)->task, err);
}

static void ollama_manage_serve(struct exchange *x, begin_fn begin) {
    struct manage *m = NULL;
    struct err err = {0};
    int r = start_change(x, begin, &m, &err);

    began(x, m, r, &err);
}

void ollama_copy_serve(struct exchange *x, struct http *h) {
    ollama_manage_serve(x, begin_copy);
}

void ollama_delete_serve(struct exchange *x, struct http *h) {
    ollama_manage_serve(x, begin_delete);
}
