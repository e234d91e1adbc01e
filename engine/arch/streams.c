#include "engine/arch/streams.h"

#include <stdio.h>

#include "engine/bind/meta.h"
#include "engine/sinkhorn.h"

void streams_read(struct binder *b, struct stream_shape *t) {
    double eps = 1e-6;

    meta_u32(b, "hyper_connection.count", 2, MAX_STREAMS, &t->n);
    meta_u32(b, "hyper_connection.sinkhorn_iterations", 1, 1000, &t->rounds);
    meta_f32_opt(b, "hyper_connection.epsilon", 0, 0.1, &eps);
    t->eps = (float)eps;
    t->n_low = t->n * (t->n + 2);
}

void streams_add_in(struct binder *b, struct model *m, uint32_t l, const char *name, bool ends) {
    uint64_t n = m->shape.stream.n, width = n * m->shape.n_embd;
    uint64_t n_out = m->shape.stream.n_low;

    if (ends)
        n_out = n;
    model_add(m, &(struct model_op){
                     .kind = OP_HC_IN,
                     .layer = l,
                     .w = {bind_matrix(b, BIND_MUST, width, n_out, "%s_fn.weight", name)},
                     .weigh = bind_vector(b, BIND_MUST, ends ? 1 : 3, "%s_scale.weight", name),
                     .pick_bias = bind_vector(b, BIND_MUST, n_out, "%s_base.weight", name),
                 });
}

void streams_add_branch(struct binder *b, struct model *m, uint32_t l, const char *what) {
    char name[32];

    snprintf(name, sizeof(name), "blk.%u.hc_%s", l, what);
    streams_add_in(b, m, l, name, false);
}

void streams_add_out(struct model *m, uint32_t l, bool begins) {
    model_add(m, &(struct model_op){.kind = OP_HC_OUT, .layer = l, .begins = begins});
}
