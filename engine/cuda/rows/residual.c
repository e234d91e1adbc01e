/*
 * residual - additions to x with more than a sum: norms after branches, factors, branches that are
 * joined before they are added, and inputs of the layers. The product is written to be.act.o, and a
 * kernel with one block for each row does the rest, including the norm of the next op.
 */

#include <assert.h>
#include <math.h>

#include "base/try.h"
#include "engine/cuda/cuda.h"

float *residual_target(const struct be *b, const struct model_op *op) {
    bool plain = !op->post_norm && !op->branch && op->gain == 1 && op->scale == 1;

    if (b->group.n > 1)
        return b->act.own_t;
    if (plain)
        return b->act.x;
    return b->act.o;
}

/* Launches residual(): to = (base + gain norm(t)) * scale. n 0: n_embd values in a row; eps 0: the
 * model's. */
static int residual_launch(struct step *s, const struct residual_args *what,
                           const struct pack_args *pack) {
    struct be *b = s->be;
    struct residual_args a = *what;

    a.batch = b->head;
    if (what->eps > 0)
        a.eps = what->eps;
    else
        a.eps = b->shape->rms_eps;
    if (what->n)
        a.n = what->n;
    else
        a.n = b->shape->n_embd;
    a.packs = pack != NULL;
    assert(a.t && a.to && (!pack || pack->n == a.n));
    if (pack)
        a.pack = *pack;
    if (b->group.n > 1)
        return ranks_residual(b, s->grid.rows, &a);
    return CUDA_LAUNCH(b, residual, s->grid.rows, 1, CUDA_THREADS, &a);
}

/* Returns the norm that follows op @op, or NULL. */
static const float *post_norm_of(const struct be *b, const struct model_op *op) {
    const struct weights *w = step_weights(b, op);

    if (!w)
        return NULL;
    return w->post_norm;
}

/* Returns the split-K sums of @op. */
static struct left residual_left(const struct step *s, const struct model_op *op) {
    if (op->kind != OP_PROJ || s->be->group.n > 1 || op_is_hosts(s->be->shape, op))
        return (struct left){0};
    return step_proj_left(s, op);
}

bool residual_is_open(const struct step *s, const struct model_op *op) {
    if (op->kind != OP_PROJ || op_is_hosts(s->be->shape, op))
        return true;
    return residual_target(s->be, op) != s->be->act.x || residual_left(s, op).sums;
}

/* Returns the rows that @op adds to x. */
static float *residual_rows(const struct be *b, const struct model_op *op) {
    if (op_is_hosts(b->shape, op))
        return b->experts.host_y;
    if (op->kind == OP_JOIN)
        return b->act.q;
    return b->act.o;
}

int residual_add(struct step *s, const struct model_op *op, const struct pack_args *pack) {
    struct be *b = s->be;
    const struct residual_args a = {.t = residual_rows(b, op),
                                    .norm = post_norm_of(b, op),
                                    .base = op->kind == OP_EXPERTS ? NULL : b->act.x,
                                    .left = residual_left(s, op),
                                    .to = b->act.x,
                                    .gain = op->gain,
                                    .scale = op->scale,
                                    .eps = op->post_eps};

    return residual_launch(s, &a, pack);
}

int residual_branch(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct residual_args a = {.t = b->act.o,
                                    .norm = post_norm_of(b, op),
                                    .base = op->kind == OP_EXPERTS ? b->act.q : NULL,
                                    .to = b->act.q,
                                    .gain = 1,
                                    .scale = 1,
                                    .eps = op->post_eps};

    return residual_launch(s, &a, NULL);
}

int residual_norm_rows(struct step *s, float *x, const float *norm, uint32_t n) {
    const struct residual_args a = {.t = x, .norm = norm, .to = x, .gain = 1, .scale = 1, .n = n};

    return residual_launch(s, &a, NULL);
}

int step_norm_x(struct step *s, const struct model_op *op) {
    struct be *b = s->be;

    return residual_norm_rows(s, b->act.x, op->weights->norm, b->shape->n_embd);
}

int step_join(struct step *s, const struct model_op *op) {
    return step_finish(s, op);
}

/* Computes the inputs p of all layers from x. */
int step_layer_input(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    const struct weights *w = op->weights;
    const struct layer_input_args a = {
        .batch = b->head,
        .table = w->raw,
        .sampled = b->sampling.sampled,
        .norm = w->post_norm,
        .p = b->act.layer_input,
        .n = m->n_layer_input,
        .n_layer = m->n_layer,
        .scale = 1.0f / sqrtf((float)m->n_embd),
        .own = sqrtf((float)m->n_layer_input),
        .eps = m->rms_eps,
    };
    uint32_t warps = CUDA_THREADS / 32;

    TRY(step_norm(s, op));
    assert(w->n_mats == 1 && w->m[0].n_out == m->n_layer * m->n_layer_input);
    TRY(step_multiply(s, w, false));
    return CUDA_LAUNCH(b, layer_input, s->grid.rows, (m->n_layer + warps - 1) / warps, CUDA_THREADS,
                       &a);
}

int step_gate_in(struct step *s, const struct model_op *op) {
    assert(op->layer < s->be->shape->n_layer);
    TRY(step_norm(s, op));
    return step_multiply(s, op->weights, false);
}
