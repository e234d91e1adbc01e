#include "engine/place.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct placement count(const struct model *m) {
    struct placement p = {0};

    for (uint32_t i = 0; i < m->n_ops; i++) {
        const struct model_op *op = &m->op[i];

        p.n_layers += op->kind == OP_EXPERTS;
        if (!op_is_hosts(&m->shape, op))
            continue;
        p.n_host++;
        for (int w = 0; w < OP_MATRICES; w++)
            if (op->w[w] && (w == 0 || op->w[w] != op->w[w - 1])) /* GLU_RELU: gates are ups */
                p.host_bytes += op->w[w]->n_bytes;
    }
    return p;
}

/* The fewest layers, the device having room for @kv then; all, where it has not even so. */
static int choose(struct model *m, const struct be_ops *ops, const struct engine_opts *o,
                  uint64_t kv, struct err *err) {
    uint32_t from = 0, to = m->shape.n_layer, *n = &m->shape.host_layers;
    uint64_t room;
    int r = 0;

    for (*n = 0; from < to; *n = from + (to - from) / 2) {
        r = ops->room(&m->shape, o, &room, err);
        if (r < 0)
            return r;
        if (room >= kv)
            to = *n;
        else
            from = *n + 1;
    }
    *n = to;
    return 0;
}

static int check_host(const struct model *m, const struct engine_opts *o, struct err *err) {
    uint64_t have = o->memory ? o->memory : fit_machine();
    struct placement p = count(m);

    if (p.host_bytes <= have)
        return 0;
    err_set(err, 0, NULL,
            "does not fit: the experts of %u layers, of %u, that are not the device's take %s, of "
            "the machine's memory %s may be taken",
            p.n_host, p.n_layers, fit_text(p.host_bytes).s, fit_text(have).s);
    return -ENOMEM;
}

/* KV memory that experts give way to. */
static uint64_t kv_of(const struct model *m, const struct engine_opts *o,
                      const struct fit_sizes *s) {
    const struct fit_windows w = fit_windows(m, o, s);
    struct fit f = fit_of(m, o, s, &w);

    if (o->n_pages)
        return o->n_pages * (s->page + s->window_page);
    f.wish = o->device_share ? 0 : o->kv_bytes;
    return fit_kv_beside(&f);
}

int place(struct model *m, const struct be_ops *ops, const struct engine_opts *o,
          const struct fit_sizes *s, struct err *err) {
    uint32_t n = o->host_experts;
    int r = 0;

    m->shape.host_layers = 0;
    if (!ops->device || !ops->room || !m->shape.n_expert || n == 0)
        return 0;
    if (n == ENGINE_HOST_AUTO)
        r = choose(m, ops, o, kv_of(m, o, s), err);
    else
        m->shape.host_layers = MIN(n, m->shape.n_layer);
    return r < 0 ? r : check_host(m, o, err);
}

struct placement place_tell(const struct model *m, char *note, size_t n) {
    struct placement p = count(m);
    size_t at = strlen(note);

    if (p.n_host)
        snprintf(
            note + at, n - at,
            "%sthe experts of %u layers, of %u, lie in host memory (%s) and are computed there",
            at ? "; " : "", p.n_host, p.n_layers, fit_text(p.host_bytes).s);
    return p;
}
