#pragma once

/*
 * model - from a file to something that can be computed: the architecture by name, its shape, and the
 * list of ops with their tensors. Everything that the forward pass relies on is checked here, so that
 * backends need not.
 *
 * An architecture is one file in engine/arch: what its tensors are (bind) and one forward pass through
 * the op table. Its row is in model.c.
 */

#include "engine/backend.h"

struct model_op {
    struct op_tensors tensors;
    struct weights *weights; /* the backend's; NULL until model_load() */
};

/* The ops of a layer; the model's list is embed, logits, then these for each layer. With experts the last two
 * are route and experts. */
enum layer_op {
    L_QKV,
    L_ATTN_OUT,
    L_GATE_UP,
    L_DOWN,
    L_OPS,
    L_ROUTE = L_GATE_UP,
    L_EXPERTS = L_DOWN
};

struct model {
    const struct arch *arch;
    struct model_shape shape;
    struct model_op *op; /* [n_ops] */
    uint32_t n_ops;
    uint64_t weight_bytes, n_params;
};

struct binder;

struct arch {
    const char *name;
    enum rope_type rope;
    enum { EXPERTS_NEVER, EXPERTS_MAY, EXPERTS_MUST } experts;
    void (*bind)(struct binder *b); /* errors stay in the binder */
    int (*forward)(const struct model *m, const struct be_ops *ops, struct step *s);
};

/* 0 or -errno with @err: unknown architecture, a missing or odd hyperparameter, a missing, unknown or
 * misshapen tensor. The tensors stay those of @file. */
int model_init(struct model *m, const struct gguf *file, struct err *err);
void model_deinit(struct model *m);
/* Hands every op to the backend. */
int model_load(struct model *m, const struct be_ops *ops, struct be *be,
               const struct engine_opts *opts, struct err *err);

static inline const struct weights *model_embed(const struct model *m) {
    return m->op[0].weights;
}

static inline const struct weights *model_logits(const struct model *m) {
    return m->op[1].weights;
}

static inline struct model_op *model_layer_op(const struct model *m, uint32_t l, enum layer_op k) {
    return &m->op[2 + L_OPS * l + (uint32_t)k];
}

static inline const struct weights *model_layer(const struct model *m, uint32_t l,
                                                enum layer_op k) {
    return model_layer_op(m, l, k)->weights;
}
