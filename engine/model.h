#pragma once

/*
 * model - a model as the engine runs it: its shape and one list of ops, from the embedding to the
 * logits, that engine/arch made from the file. A layer is any number of ops of any kind.
 */

#include "engine/backend.h"

struct model {
    const char *arch; /* general.architecture */
    struct model_shape shape;
    struct model_op *op; /* [n_ops] in the order in which they run */
    uint32_t n_ops, capacity;
    int r; /* 0, or -ENOMEM of model_add() */
    uint64_t weight_bytes, n_params;
};

/* Appends a copy of @op. */
void model_add(struct model *m, const struct model_op *op);
/* The next layer that has pages of class @cls. */
struct kv_layer model_add_kv(struct model *m, uint8_t cls);
void model_deinit(struct model *m);
/* Hands every op to the backend. 0 or -errno with @err: also where the backend does not know a kind
 * of op. */
int model_load(struct model *m, const struct be_ops *ops, struct be *be,
               const struct engine_opts *opts, struct err *err);
/* Runs all ops for a step that has begun. 0 or -errno. */
int model_forward(const struct model *m, const struct be_ops *ops, struct step *s);
