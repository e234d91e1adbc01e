#include "api/generation/rescan.h"

#include <assert.h>
#include <stdlib.h>
#include "api/http/respond.h"
#include "api/generation/env.h"

/* An exchange that waits until the folders of models have been read. */
struct parked {
    struct api_rescan wait;
    struct exchange *x;
    void (*serve)(struct exchange *x, struct http *h);
};

/* Ends the wait: frees @p and returns its exchange. */
static struct exchange *detach(struct parked *p) {
    struct exchange *x = p->x;

    assert(x->state == p);
    list_remove(&p->wait.link);
    x->ops = NULL;
    x->state = NULL;
    free(p);
    return x;
}

static void on_gone(struct exchange *x) {
    exchange_end(detach(x->state));
}

static void on_fail(struct exchange *x, const struct err *err) {
    struct err copy = *err;

    respond_error(detach(x->state), &copy);
}

static void on_over(struct api_rescan *wait) {
    struct parked *p = CONTAINER_OF(wait, struct parked, wait);
    void (*serve)(struct exchange * x, struct http * h) = p->serve;

    serve(detach(p), NULL);
}

bool rescan_begin(struct gen_env *env, struct api_rescan *wait) {
    return env->opts.rescan && env->opts.rescan(env->opts.models_ctx, wait);
}

bool rescan_first(struct exchange *x, void (*serve)(struct exchange *x, struct http *h)) {
    static const struct exchange_ops ops = {.gone = on_gone, .fail = on_fail};
    struct parked *p = env_of(x)->opts.rescan ? calloc(1, sizeof(*p)) : NULL;

    assert(!x->ops);
    if (!p)
        return false;
    p->wait.over = on_over;
    p->x = x;
    p->serve = serve;
    list_init(&p->wait.link);
    if (!rescan_begin(env_of(x), &p->wait)) {
        free(p);
        return false;
    }
    x->ops = &ops;
    x->state = p;
    return true;
}
