#include "engine/arch/limits.h"

#include <assert.h>

/* Reads the limits of one key; numbers up to 1e-6 mean no limit. */
static void limits_read_one(struct binder *b, const char *key, uint32_t n_layer, float *out) {
    double all = 0;

    if (!meta_numbers(b, BIND_MAY, key, GGUF_F32, n_layer, out)) {
        meta_f32_opt(b, key, 0, 1e6, &all);
        for (uint32_t l = 0; l < n_layer; l++)
            out[l] = (float)all;
    }
    for (uint32_t l = 0; l < n_layer && b->r == 0; l++) {
        if (!(out[l] >= 0 && out[l] <= 1e6f))
            bind_refuse(b, "'%s' is %g for layer %u; it must be from 0 to 1e6", meta_key(b, key).s,
                        (double)out[l], l);
        if (out[l] <= 1e-6f)
            out[l] = 0;
    }
}

void limits_read(struct binder *b, uint32_t n_layer, struct limits *out) {
    assert(n_layer <= MODEL_LAYERS_MAX);
    limits_read_one(b, "swiglu_clamp_exp", n_layer, out->experts);
    limits_read_one(b, "swiglu_clamp_shexp", n_layer, out->ffn);
}

void limits_set(struct model *m, uint32_t first, const struct limits *l, uint32_t layer) {
    for (uint32_t i = first; i < m->n_ops; i++) {
        struct model_op *op = &m->op[i];

        if (op->kind == OP_GATE_UP)
            op->ffn.limit = l->ffn[layer];
        else if (op->kind == OP_EXPERTS)
            op->ffn.limit = l->experts[layer];
    }
}
