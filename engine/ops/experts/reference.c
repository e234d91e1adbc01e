/*
 * reference - mixtures of experts in the reference backend, written from the formulas of op_list.h.
 */

#include "engine/reference/reference.h"

#include <assert.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/experts.h"
#include "engine/formats/quant.h"

/* Leaves the normed rows in b->normed for ref_experts() and ref_shared(). */
int ref_route(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    uint32_t n_rows = s->host.batch->n_rows;

    ref_norm_rows(s, op);
    ref_linear(b, op->w[0], op->bias[0], b->normed, n_rows, b->router);
    for (size_t i = 0; i < (size_t)n_rows * m->n_expert; i++)
        b->router[i] *= op->scale;
    float *bias = b->router + (size_t)n_rows * m->n_expert;
    const struct expert_rule rule = experts_rule(m, op, op->pick_bias ? bias : NULL);
    if (op->pick_bias)
        quant_decode_row(op->pick_bias, 0, bias);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *logits = b->router + (size_t)r * m->n_expert;
        struct expert_pick *pick = b->pick + (size_t)r * m->n_expert_used;

        if (op->picks) {
            experts_look_up(op->picks, (uint32_t)s->host.batch->token[r], pick);
            experts_weigh(logits, &rule, pick);
        } else {
            experts_pick(logits, &rule, pick);
        }
    }
    if (op->w[1])
        ref_linear(b, op->w[1], NULL, b->normed, n_rows, b->act[ACT_D]);
    return 0;
}

/* Computes out = w[e] x + bias[e]; @bias NULL: 0. */
static void multiply_expert(struct be *b, const struct tensor *w, const struct tensor *bias,
                            uint32_t e, const float *x, float *out) {
    for (uint64_t o = 0; o < w->ne[1]; o++) {
        quant_decode_row(w, e * w->ne[1] + o, b->row);
        out[o] = host_dot(b->row, x, w->ne[0]);
        if (bias)
            out[o] += ref_vector_at(bias, e * w->ne[1] + o);
    }
}

/* Returns @y times @by, which the next call overwrites. */
static const float *scaled_input(struct be *b, const float *y, float by) {
    for (uint32_t i = 0; i < b->shape->n_embd; i++)
        b->sum[i] = y[i] * by;
    return b->sum;
}

/* Returns the output of expert @e for @y, which the next call overwrites. With op->joined, w[0]
 * yields the values of the gate, then those of the up projection. */
static float *run_expert(struct be *b, const struct model_op *op, uint32_t e, const float *y) {
    size_t n = op->w[2]->ne[0];
    float *gate = b->gate, *out = b->gate + 2 * n;

    multiply_expert(b, op->w[0], op->bias[0], e, y, gate);
    if (op->w[1])
        multiply_expert(b, op->w[1], op->bias[1], e, y, b->up);
    for (size_t i = 0; i < n && !op->w[1]; i++)
        b->up[i] = 1;
    ref_glu(op->ffn.glu, op->ffn.limit, gate, op->ffn.joined ? gate + n : b->up, n);
    multiply_expert(b, op->w[2], op->bias[2], e, gate, out);
    return out;
}

/* Decodes the matrices of the picked experts for each row again. Without post_norm adds the outputs
 * to x one by one, whereas the CPU backend adds their sum. */
int ref_experts(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    size_t n = op->w[2]->ne[1];
    bool apart = op->post_norm || op->ffn.latent;

    assert(!op->ffn.early || !apart); /* both use b->sum */
    if (op->norm)
        ref_norm_rows(s, op);
    for (uint32_t r = 0; r < s->host.batch->n_rows; r++) {
        float *to = b->act[op_sum(op)] + r * n, *sum = to;
        const float *y = b->normed + r * n;

        if (op->ffn.latent)
            y = to;
        if (apart) {
            sum = b->sum;
            memset(sum, 0, n * sizeof(*sum));
        }
        for (uint32_t k = 0; k < op->n_used; k++) {
            const struct expert_pick *p = &b->pick[(size_t)r * m->n_expert_used + k];

            assert(p->expert < m->n_expert);
            const float *in = op->ffn.early ? scaled_input(b, y, p->weight) : y;
            const float *out = run_expert(b, op, p->expert, in);
            float weight = 1;

            if (!op->ffn.early)
                weight = p->weight;
            if (op->weigh)
                weight *= ref_vector_at(op->weigh, p->expert);
            for (size_t i = 0; i < n; i++)
                sum[i] += weight * out[i];
        }
        if (op->post_norm)
            ref_rms_norm(sum, op->post_norm, m->rms_eps, n, sum);
        for (size_t i = 0; i < n && op->post_norm; i++)
            to[i] += sum[i];
        if (op->ffn.latent)
            memcpy(to, sum, n * sizeof(*to));
    }
    return 0;
}

/* Uses the rows that ref_route() left in b->normed. */
int ref_shared(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    float *gate = b->gate, *out = b->gate + m->n_ff_shared, weight;

    for (uint32_t r = 0; r < s->host.batch->n_rows; r++) {
        const float *y = b->normed + (size_t)r * m->n_embd;
        float *to = b->act[op_sum(op)] + (size_t)r * m->n_embd;

        multiply_expert(b, op->w[0], NULL, 0, y, gate);
        multiply_expert(b, op->w[1], NULL, 0, y, b->up);
        ref_glu(op->ffn.glu, 0, gate, b->up, m->n_ff_shared);
        multiply_expert(b, op->w[2], NULL, 0, gate, out);
        multiply_expert(b, op->w[3], NULL, 0, y, &weight);
        for (uint32_t i = 0; i < m->n_embd; i++)
            to[i] += mx_sigmoid(weight) * out[i];
    }
    return 0;
}
