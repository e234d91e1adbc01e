/*
 * Sleep as vLLM has it: POST /sleep frees the memory of the models, POST /wake_up loads the first
 * again, GET /is_sleeping tells whether any is in memory. "?model=NAME" confines each to one model.
 * Both POST routes answer when the operation has begun: running requests end first. A request for
 * generation wakes its model, so nothing is refused meanwhile. vLLM's parameters `level`
 * and `tags` are ignored: weft frees all memory of a model, or none.
 */

#include <string.h>

#include "api/generation/env.h"
#include "api/generation/models.h"
#include "api/http/http.h"
#include "api/http/respond.h"
#include "api/service/service.h"
#include "base/try.h"

/* Sets *@out to the model that the query names, or to NULL if it names none. Returns 0, or a 404 in
 * @err. */
static int sleep_named_model(const struct exchange *x, const struct http *h, struct model **out,
                             struct err *err) {
    char name[1024];

    *out = NULL;
    if (!http_query(h, "model", name, sizeof(name)))
        return 0;
    *out = models_find(env_of(x), name, strlen(name));
    if (*out)
        return 0;
    return models_refuse(x, name, err);
}

static int sleep_find_model(struct exchange *x, const struct http *h, struct model **out,
                            struct err *err) {
    TRY(models_check_right(x, err));
    return sleep_named_model(x, h, out, err);
}

/* Checks the right and finds the model. Returns 0, or negative after an answer. */
static int sleep_begin(struct exchange *x, const struct http *h, struct model **out) {
    struct err err = {0};
    int r = sleep_find_model(x, h, out, &err);

    if (r < 0)
        respond_error(x, &err);
    return r;
}

static void accept_change(struct exchange *x) {
    respond(x, 200, RESPOND_JSON, "{}", 2);
}

void sleep_serve(struct exchange *x, struct http *h) {
    const struct gen_env *env = env_of(x);
    struct model *named;
    struct err err = {0};
    int r = sleep_begin(x, h, &named);

    if (r < 0)
        return;
    LIST_FOREACH_ENTRY(m, &env->models.list, const struct model, link) {
        if (named && m != named)
            continue;
        r = env->opts.sleep(env->opts.models_ctx, m->info->id, &err);
        if (r < 0 && named) { /* a request for all models leaves pinned ones loaded */
            respond_error(x, &err);
            return;
        }
    }
    accept_change(x);
}

void wake_up_serve(struct exchange *x, struct http *h) {
    struct model *m;

    if (sleep_begin(x, h, &m) < 0)
        return;
    m = m ? m : model_first(env_of(x));
    if (model_on_demand(m))
        m->port->want(m->port);
    accept_change(x);
}

void sleeping_serve(struct exchange *x, struct http *h) {
    static const char yes[] = "{\"is_sleeping\":true}", no[] = "{\"is_sleeping\":false}";
    const struct gen_env *env = env_of(x);
    struct model *named;
    struct err err = {0};
    bool asleep = true;

    if (sleep_named_model(x, h, &named, &err) < 0) {
        respond_error(x, &err);
        return;
    }
    LIST_FOREACH_ENTRY(m, &env->models.list, const struct model, link) {
        asleep &= (named && m != named) || model_asleep(m);
    }
    respond(x, 200, RESPOND_JSON, asleep ? yes : no, asleep ? sizeof(yes) - 1 : sizeof(no) - 1);
}
