#include <string.h>
#include <time.h>
#include "api/anthropic/anthropic.h"
#include "api/anthropic/input.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/openai/models.h"
#include "api/private.h"

/* /v1/models as Anthropic's clients know it, for those that send its version header. */

static void put_model(struct json *j, const struct api *a) {
    const struct api_model *m = a->model;
    char created[32] = "";
    time_t t = m->created_unix;
    struct tm tm;

    strftime(created, sizeof(created), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    json_open(j, '{');
    json_put_string(j, "type", "model");
    json_put_string(j, "id", m->id);
    json_put_string(j, "display_name", m->id);
    json_put_string(j, "created_at", created);
    json_put_string(j, "lifecycle", "active");
    json_key(j, "max_input_tokens");
    if (m->max_context)
        json_uint(j, m->max_context);
    else
        json_null(j);
    json_close(j, '}');
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
    json_key(j, "data");
    json_open(j, '[');
    put_model(j, a);
    json_close(j, ']');
    json_key(j, "has_more");
    json_bool(j, false);
    json_put_string(j, "first_id", a->model->id);
    json_put_string(j, "last_id", a->model->id);
    json_close(j, '}');
}

void anthropic_models_list_serve(struct exchange *x, struct http *h) {
    (void)h;
    respond_json(x, put_list);
}

void anthropic_models_one_serve(struct exchange *x, struct http *h) {
    struct err err;

    (void)h;
    if (anthropic_is_served(api_of(x), x->arg)) {
        respond_json(x, put_model);
        return;
    }
    models_unknown(x->arg, strlen(x->arg), &err);
    respond_error(x, &err);
}
