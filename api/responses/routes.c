#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "api/generation/endpoint.h"
#include "api/openai/openai.h"
#include "api/private.h"
#include "api/generation/lookup.h"
#include "api/http/respond.h"
#include "api/responses/responses.h"

/*
 * What may be asked about a response that is kept, or under way: /v1/responses/ID, DELETE of it,
 * /cancel and /input_items. Who may not see it is told that there is none.
 */

#define LIST_DEFAULT 20u
#define LIST_MAX 100u

static void not_found(struct exchange *x) {
    struct err err;

    err_set_code(&err, 404, "not_found", "response_id", "Response with id '%.100s' not found.",
                 x->arg);
    respond_error(x, &err);
}

/* The value of @name in the query, into @out; false: it is not there. */
static bool query(const struct http *h, const char *name, char *out, size_t size) {
    const char *q = strchr(http_target(h), '?');
    size_t n = strlen(name);

    while (q && *q) {
        const char *at = q + 1;
        size_t len = strcspn(at, "&#");

        if (strncmp(at, name, n) == 0 && at[n] == '=') {
            snprintf(out, size, "%.*s", (int)(len - n - 1), at + n + 1);
            return true;
        }
        q = at[len] == '&' ? at + len : NULL;
    }
    return false;
}

/* One under way that the client may come back to. */
static struct responses *find_live(struct exchange *x) {
    struct responses *rs = responses_find(api_of(x), x->tenant, x->arg);

    return rs && !rs->writer->job.running && rs->store ? rs : NULL;
}

static void respond_live(struct exchange *x, struct responses *rs, enum responses_status status) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    struct json j;

    json_begin(&j, &b);
    responses_put(&j, rs->writer, status, NULL);
    respond_buf(x, 200, &b, j.error);
}

static void get_serve(struct exchange *x, struct http *h) {
    struct stored *s = store_get(&api_of(x)->store, x->tenant, x->arg, strlen(x->arg));
    struct responses *rs = s ? NULL : find_live(x);
    struct err err;
    char value[8];

    if (query(h, "stream", value, sizeof(value)) && strcmp(value, "true") == 0) {
        err_set_code(&err, 400, "unsupported_parameter", "stream",
                     "stream: a stream cannot be taken up again here.");
        respond_error(x, &err);
    } else if (s) {
        respond(x, 200, RESPOND_JSON, s->response, s->response_len);
    } else if (rs) {
        respond_live(x, rs, RESPONSES_IN_PROGRESS);
    } else {
        not_found(x);
    }
    stored_unref(s);
}

static void delete_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};
    struct json j;

    (void)h;
    if (!store_remove(&api_of(x)->store, x->tenant, x->arg, strlen(x->arg))) {
        not_found(x);
        return;
    }
    json_begin(&j, &b);
    json_open(&j, '{');
    json_put_string(&j, "id", x->arg);
    json_put_string(&j, "object", "response");
    json_key(&j, "deleted");
    json_bool(&j, true);
    json_close(&j, '}');
    respond_buf(x, 200, &b, j.error);
}

/* Ends a response under way: its own client is told, and so is this one. */
static void cancel(struct exchange *x, struct responses *rs) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    struct json j;
    struct err err;

    rs->cancelled = true;
    json_begin(&j, &b);
    responses_put(&j, rs->writer, RESPONSES_FAILED, NULL);
    err_set_code(&err, 503, "cancelled", NULL, "The response was cancelled.");
    respond_failure(rs->writer->exchange, &err);
    respond_buf(x, 200, &b, j.error);
}

static void cancel_serve(struct exchange *x, struct http *h) {
    struct responses *rs = find_live(x);
    struct err err;

    (void)h;
    if (rs) {
        cancel(x, rs);
        return;
    }
    struct stored *s = store_get(&api_of(x)->store, x->tenant, x->arg, strlen(x->arg));
    if (s) {
        err_set_code(&err, 400, "invalid_value", "response_id", "Response '%s' has ended already.",
                     x->arg);
        respond_error(x, &err);
    } else {
        not_found(x);
    }
    stored_unref(s);
}

/* ---- input items ---- */

/* Adds the items of @json; those without an id get one made of the response's. */
static int add_items(yyjson_mut_doc *doc, yyjson_mut_val *list, const struct stored *s,
                     yyjson_val *items) {
    yyjson_val *item;
    size_t i, n;
    char id[80];

    yyjson_arr_foreach(items, i, n, item) {
        yyjson_mut_val *copy = yyjson_val_mut_copy(doc, item);
        yyjson_val *type = yyjson_obj_get(item, "type");
        bool message = !type || yyjson_equals_str(type, "message");

        snprintf(id, sizeof(id), "%s_%s_in%zu", message ? "msg" : "item", s->id + strlen("resp_"),
                 i);
        if (!copy || !yyjson_mut_arr_append(list, copy) ||
            (!yyjson_is_str(yyjson_obj_get(item, "id")) &&
             !yyjson_mut_obj_add_strcpy(doc, copy, "id", id)) ||
            (!type && !yyjson_mut_obj_add_str(doc, copy, "type", "message")))
            return -ENOMEM;
    }
    return 0;
}

static int add_json(yyjson_mut_doc *doc, yyjson_mut_val *list, const struct stored *s,
                    const char *json, size_t len, const char *member) {
    yyjson_doc *in = yyjson_read(json, len, 0);
    yyjson_val *root = yyjson_doc_get_root(in);
    int r = in ? add_items(doc, list, s, member ? yyjson_obj_get(root, member) : root) : -ENOMEM;

    yyjson_doc_free(in);
    return r;
}

/* What the model was given: the conversation that it continues, and the input itself. */
static int add_all(yyjson_mut_doc *doc, yyjson_mut_val *list, const struct stored *s) {
    size_t n = 0;
    int r = 0;

    for (const struct stored *p = s; p; p = p->parent)
        n++;
    CLEANUP(freep) const struct stored **chain = calloc(n, sizeof(struct stored *));
    if (!chain)
        return -ENOMEM;
    for (const struct stored *p = s; p; p = p->parent)
        chain[--n] = p;
    for (; r == 0; n++) {
        r = add_json(doc, list, chain[n], chain[n]->input, chain[n]->input_len, NULL);
        if (chain[n] == s)
            return r;
        if (r == 0)
            r = add_json(doc, list, chain[n], chain[n]->response, chain[n]->response_len, "output");
    }
    return r;
}

static const char *id_of(yyjson_mut_val *item) {
    return yyjson_mut_get_str(yyjson_mut_obj_get(item, "id"));
}

/* Turns @list round when @descending, and cuts it to @limit items behind @after. */
static yyjson_mut_val *page(yyjson_mut_doc *doc, yyjson_mut_val *list, bool descending,
                            size_t limit, const char *after, bool *more) {
    size_t n = yyjson_mut_arr_size(list), from = 0;
    CLEANUP(freep) yyjson_mut_val **all = calloc(n + 1, sizeof(yyjson_mut_val *));
    yyjson_mut_val *out = yyjson_mut_arr(doc), *item;
    size_t i, max;

    if (!all || !out)
        return NULL;
    yyjson_mut_arr_foreach(list, i, max, item) all[descending ? n - 1 - i : i] = item;
    for (i = 0; *after && i < n; i++)
        if (id_of(all[i]) && strcmp(id_of(all[i]), after) == 0)
            from = i + 1;
    *more = n - from > limit;
    yyjson_mut_arr_clear(list);
    for (i = from; i < n && i - from < limit; i++)
        yyjson_mut_arr_append(out, all[i]);
    return out;
}

static int write_list(yyjson_mut_doc *doc, yyjson_mut_val *data, bool more, char **out,
                      size_t *len) {
    yyjson_mut_val *root = yyjson_mut_obj(doc), *first = yyjson_mut_arr_get_first(data),
                   *last = yyjson_mut_arr_get_last(data);

    if (!root || !yyjson_mut_obj_add_str(doc, root, "object", "list") ||
        !yyjson_mut_obj_add_val(doc, root, "data", data) ||
        !yyjson_mut_obj_add_str(doc, root, "first_id", first ? id_of(first) : NULL) ||
        !yyjson_mut_obj_add_str(doc, root, "last_id", last ? id_of(last) : NULL) ||
        !yyjson_mut_obj_add_bool(doc, root, "has_more", more))
        return -ENOMEM;
    *out = yyjson_mut_val_write(root, 0, len);
    return *out ? 0 : -ENOMEM;
}

static void items_serve(struct exchange *x, struct http *h) {
    struct stored *s = store_get(&api_of(x)->store, x->tenant, x->arg, strlen(x->arg));
    yyjson_mut_doc *doc = s ? yyjson_mut_doc_new(NULL) : NULL;
    yyjson_mut_val *list = yyjson_mut_arr(doc);
    char limit[16], order[16], after[100] = "";
    CLEANUP(freep) char *text = NULL;
    bool more = false;
    size_t len = 0;

    if (!s) {
        not_found(x);
        return;
    }
    size_t max = query(h, "limit", limit, sizeof(limit)) ? strtoul(limit, NULL, 10) : LIST_DEFAULT;
    bool ascending = query(h, "order", order, sizeof(order)) && strcmp(order, "asc") == 0;
    query(h, "after", after, sizeof(after));
    int r = list ? add_all(doc, list, s) : -ENOMEM;
    if (r == 0 && !(list = page(doc, list, !ascending, MIN(MAX(max, 1u), LIST_MAX), after, &more)))
        r = -ENOMEM;
    if (r == 0)
        r = write_list(doc, list, more, &text, &len);
    yyjson_mut_doc_free(doc);
    stored_unref(s);
    if (r < 0)
        respond_errno(x, r);
    else
        respond(x, 200, RESPOND_JSON, text, len);
}

/* ---- /v1/responses/input_tokens ---- */

static const struct endpoint count = {.open = responses_open,
                                      .close = responses_close,
                                      .translate = responses_translate,
                                      .rename = responses_rename};

static void write_count(struct json *j, const struct prompt_job *job) {
    json_open(j, '{');
    json_put_string(j, "object", "response.input_tokens");
    json_put_int(j, "input_tokens", (int64_t)job->prompts[0].tokens.n);
    json_close(j, '}');
}

static void count_serve(struct exchange *x, struct http *h) {
    (void)h;
    lookup_serve(x, &count, write_count);
}

/* ---- the dialect ---- */

static const struct route routes[] = {
    {"/v1/responses", HTTP_POST, false, true, responses_serve},
    {"/v1/responses/input_tokens", HTTP_POST, false, false, count_serve},
    {"/v1/responses/*/cancel", HTTP_POST, false, false, cancel_serve},
    {"/v1/responses/*/input_items", HTTP_GET, false, false, items_serve},
    {"/v1/responses/*", HTTP_GET, false, false, get_serve},
    {"/v1/responses/*", HTTP_DELETE, false, false, delete_serve},
    {0},
};

static const char *const prefixes[] = {"/v1/responses", NULL};

const struct dialect responses_dialect = {
    .name = "responses",
    .prefixes = prefixes,
    .routes = routes,
    .put_ids = openai_put_ids,
    .put_limit = openai_put_limit,
    .put_error = openai_put_error,
    .stream_type = SSE_TYPE,
    .event_begin = SSE_BEGIN,
    .event_end = SSE_END,
    .keepalive = SSE_COMMENT,
};
