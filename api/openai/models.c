#include <string.h>
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/openai/models.h"
#include "api/openai/openai.h"
#include "api/private.h"
#include "api/http/respond.h"

static void put_model(struct json *j, const struct api *a) {
    const struct api_model *m = a->model;

    json_open(j, '{');
    json_put_string(j, "id", m->id);
    json_put_string(j, "object", "model");
    json_put_int(j, "created", m->created_unix);
    json_put_string(j, "owned_by", a->opts.owned_by ? a->opts.owned_by : "weft");
    json_put_string(j, "root", m->id);
    json_put_string(j, "parent", NULL);
    json_key(j, "max_model_len");
    if (m->max_context)
        json_uint(j, m->max_context);
    else
        json_null(j); /* not known before the worker is ready */
    json_close(j, '}');
}

bool models_is_served(const struct api *a, const char *name, size_t len) {
    const struct api_model *m = a->model;

    if (strlen(m->id) == len && memcmp(m->id, name, len) == 0)
        return true;
    for (const char *const *alias = m->aliases; alias && *alias; alias++)
        if (strlen(*alias) == len && memcmp(*alias, name, len) == 0)
            return true;
    return false;
}

bool models_is_answered(const struct api *a, const char *name, size_t len) {
    return a->opts.any_model_name || models_is_served(a, name, len);
}

static void respond_json(struct exchange *x, void (*put)(struct json *j, const struct api *a)) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64 << 10};
    struct json j;

    json_begin(&j, &b);
    put(&j, api_of(x));
    respond_buf(x, 200, &b, j.error);
}

static void put_list(struct json *j, const struct api *a) {
    json_open(j, '{');
    json_put_string(j, "object", "list");
    json_key(j, "data");
    json_open(j, '[');
    put_model(j, a);
    json_close(j, ']');
    json_close(j, '}');
}

void models_list_serve(struct exchange *x, struct http *h) {
    (void)h;
    respond_json(x, put_list);
}

void models_one_serve(struct exchange *x, struct http *h) {
    struct err err;

    (void)h;
    if (models_is_served(api_of(x), x->arg, strlen(x->arg))) {
        respond_json(x, put_model);
        return;
    }
    models_unknown(x->arg, strlen(x->arg), &err);
    respond_error(x, &err);
}

int models_unknown(const char *name, size_t len, struct err *err) {
    return err_set_code(err, 404, "model_not_found", "model", "The model `%.*s` does not exist.",
                        (int)MIN(len, 200u), name);
}
