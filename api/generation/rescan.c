#include "api/generation/rescan.h"

#include <stdlib.h>

#include "api/generation/env.h"

/* An exchange that waits until the folders of models have been read. */
struct parked {
    struct api_rescan wait;
    struct exchange *x;
    void (*serve)(struct exchange *x, struct http *h);
};

static void rescan_detach(struct exchange *x, void *state) {
    struct parked *p = state;

    list_remove(&p->wait.link);
    free(p);
}

static void rescan_on_over(struct api_rescan *wait) {
    struct parked *p = CONTAINER_OF(wait, struct parked, wait);
    void (*serve)(struct exchange * x, struct http * h) = p->serve;
    struct exchange *x = p->x;

    exchange_abandon(x);
    serve(x, NULL);
}

bool rescan_begin(struct gen_env *env, struct api_rescan *wait) {
    return env->opts.rescan && env->opts.rescan(env->opts.models_ctx, wait);
}

bool rescan_first(struct exchange *x, void (*serve)(struct exchange *x, struct http *h)) {
    static const struct exchange_ops ops = {.abandon = rescan_detach};
    struct parked *p = env_of(x)->opts.rescan ? calloc(1, sizeof(*p)) : NULL;

    if (!p)
        return false;
    p->wait.over = rescan_on_over;
    p->x = x;
    p->serve = serve;
    list_init(&p->wait.link);
    if (!rescan_begin(env_of(x), &p->wait)) {
        free(p);
        return false;
    }
    exchange_attach(x, &ops, p);
    return true;
}
