#pragma once

/*
 * model - a model as the engine runs it: its shape and one list of ops, from the embedding to the
 * logits, that engine/arch made from the file. A layer is any number of ops of any kind.
 */

#include "engine/backend.h"

/*
 * Invariants, once engine/arch has filled it: the first op is EMBED and the last LOGITS; ROUTE is
 * followed by EXPERTS and perhaps SHARED, DELTA_IN by DELTA, a gated QKV by ATTEND and GATE; every
 * op's tensors have the shapes that backend.h says; n_kv_layer[c] is the number of ATTEND ops with
 * pages of class c, shape.delta.n_layer that of DELTA ops. op[i].weights are set by model_load()
 * and freed by the backend.
 */
struct model {
    const char *arch; /* general.architecture */
    struct model_shape shape;
    struct model_op *op; /* [n_ops] in the order in which they run */
    uint32_t n_ops, capacity;
    int r; /* 0, or -ENOMEM of model_add() */
    uint64_t weight_bytes, n_params;
};

/* Appends a copy of @op. When memory runs out, m->r says so and later calls do nothing. */
void model_add(struct model *m, const struct model_op *op);
/* The next layer that has pages of class @cls. */
struct kv_layer model_add_kv(struct model *m, uint8_t cls);
/* Accepts a model that is all zeros. The weights are the backend's: close it first or after, as
 * you like. */
void model_deinit(struct model *m);
/* Hands every op to the backend. 0 or -errno with @err: also where the backend does not know a kind
 * of op. */
int model_load(struct model *m, const struct be_ops *ops, struct be *be,
               const struct engine_opts *opts, struct err *err);
/* Runs all ops for a step that has begun. 0 or -errno. */
int model_forward(const struct model *m, const struct be_ops *ops, struct step *s);
