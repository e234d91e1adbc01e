/*
 * cuda_ranks - what a device computes of experts if several devices divide the matrices: its rows
 * of each expert. Gates and ups are exchanged before the down projections, and sums before they are
 * added to x.
 */

#include "base/try.h"
#include "engine/cuda/ranks/ranks.h"

const char *experts_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    const struct model_op *next = op + 1;
    bool plain = !next->post_norm && !next->branch && next->gain == 1 && next->scale == 1;

    if (op->ffn.latent)
        return "experts in a latent space";
    if (op->w[1] == op->w[0])
        return "experts without gates";
    if (next->kind == OP_PROJ && (op->branch || !plain))
        return "a shared expert with a norm or a factor";
    return NULL;
}

/* The gate of the shared expert is one row. */
struct op_cuts shared_cuts(const struct be *b, const struct model_op *op, uint32_t i) {
    return (struct op_cuts){.whole = i == 3};
}

/* Computes the rank's columns of h for each pair of a row and an expert. */
int experts_own_gates(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    enum pack_kind kind;

    TRY(experts_gates(s, op, &kind));
    return ranks_glu(s, kind, b->experts.gate, b->experts.up, op->weights->m[0].n_out, op->n_used);
}

/* Computes the rank's columns of the experts' sum, unless a shared expert does. */
int experts_own_sum(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct pack_args pack = step_pack_args(b, PACK_PLAIN, NULL, NULL, (uint32_t)op->w[2]->ne[0]);

    pack.each = op->n_used;
    pack.cores = false;
    TRY(ranks_pack(b, s->grid.rows * pack.each, BE_AT(experts.gate), &pack));
    TRY(experts_downs(s, op));
    if (op->links.into && op->links.into->kind == OP_SHARED)
        return 0;
    return experts_combine(s, op, b->act.own_t, NULL);
}

/* Computes the rank's columns of the shared expert's h. */
int shared_own_gates(struct step *s, const struct model_op *op) {
    const struct weights *route = step_weights(s->be, op->links.from->links.from);

    TRY(step_pack(s, PACK_NORM, s->be->act.x, route->norm, s->be->shape->n_embd));
    TRY(step_gate_and_up(s, op->weights, step_glu(op)));
    return ranks_own_glu(s, op);
}

/* Computes the rank's columns of the sum of all experts. */
int shared_own_sum(struct step *s, const struct model_op *op) {
    const struct model_op experts = ranks_part_of(s->be, op->links.from);

    TRY(ranks_multiply(s, op->weights->down, BE_AT(act.gate), false));
    return experts_combine(s, &experts, s->be->act.own_t, NULL);
}
