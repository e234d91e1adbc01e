#include "tests/engine/bounds.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/quant.h"
#include "engine/reference/reference.h"

/* Covers what single precision adds to the sums of a product and of a norm, and the rounding of
 * values to half precision in a page. */
#define ROUNDING 1.01

/* Returns the largest magnitude of @n values of @t; NULL: @otherwise. */
static double bounds_vector(const struct tensor *t, size_t n, double otherwise) {
    double most = 0;

    for (size_t i = 0; i < n && t; i++)
        most = fmax(most, fabs(ref_vector_at(t, i)));
    return t ? most : otherwise;
}

/* Returns the bound of the rows after the norm of the input of @op: each of n normed values is at
 * most sqrt(n). INFINITY: there is no norm. */
static double bounds_norm(const struct model_shape *m, const struct model_op *op) {
    size_t n = op->width;

    if (!op->norm)
        return INFINITY;
    double bias = m->layer_norm ? bounds_vector(op->norm_bias, n, 0) : 0;
    return ROUNDING * (sqrt((double)n) * bounds_vector(op->norm, n, 1) + bias);
}

/* Sets most[o] to the bound of output @o of the product with op->w[i], whose input has the norm of
 * @op: sqrt(n) times the length of row o of W, with the weights of the norm as factors of its
 * columns, and the output of the biases. */
static void bounds_product(const struct model_shape *m, const struct model_op *op, int i,
                           double *most) {
    const struct tensor *w = op->w[i];
    size_t n = w->ne[0];
    float *row = malloc(n * sizeof(*row));

    assert(row && op->norm && n == op->width);
    for (size_t o = 0; o < w->ne[1]; o++) {
        double square = 0, plus = op->bias[i] ? ref_vector_at(op->bias[i], o) : 0;

        quant_decode_row(w, o, row);
        for (size_t k = 0; k < n; k++) {
            double factor = (double)row[k] * ref_vector_at(op->norm, k);

            square += factor * factor;
            if (m->layer_norm && op->norm_bias)
                plus += (double)row[k] * ref_vector_at(op->norm_bias, k);
        }
        most[o] = ROUNDING * (sqrt((double)n * square) + fabs(plus));
    }
    free(row);
}

/* Returns the bound of the product with op->w[i]. */
static double bounds_largest(const struct model_shape *m, const struct model_op *op, int i) {
    size_t n_out = op->w[i]->ne[1];
    double *most = malloc(n_out * sizeof(*most)), all = 0;

    assert(most);
    bounds_product(m, op, i, most);
    for (size_t o = 0; o < n_out; o++)
        all = fmax(all, most[o]);
    free(most);
    return all;
}

/* Returns the bound of the values that @op stores in pages. */
static double bounds_values(const struct model_shape *m, const struct model_op *op) {
    if (op->kind == OP_QKV && op->qkv.v_unit)
        return ROUNDING * sqrt(op->heads.dim);
    if (!op->norm)
        return INFINITY;
    if (op->kind == OP_KEYS)
        return bounds_largest(m, op, 1);
    return bounds_largest(m, op, op->w[2] ? 2 : 1);
}

/* Returns the bound of attention's output, a mean of values, for the ATTEND op @i of @m. */
static double bounds_attend(const struct model *m, uint32_t i) {
    const struct kv_layer *kv = &m->op[i].kv;

    for (uint32_t k = i; k-- > 0;) {
        const struct model_op *op = &m->op[k];
        bool stores = op->kind == OP_KEYS || op->kind == OP_QKV;

        if (stores && op->w[1] && op->kv.cls == kv->cls && op->kv.layer == kv->layer)
            return bounds_values(&m->shape, op);
    }
    return INFINITY;
}

/* Returns the bound of the input of the PROJ op @i, whose input is attention's output: what gates
 * multiply it by is at most 1 if it is a sigmoid. */
static double bounds_heads(const struct model *m, uint32_t i) {
    for (uint32_t k = i; k-- > 0;) {
        const struct model_op *op = &m->op[k];

        if (op->kind == OP_GATE && op->w[0] && !op->sigmoid)
            return INFINITY;
        if (op->kind == OP_ATTEND)
            return bounds_attend(m, k);
        if (op->kind != OP_GATE)
            return INFINITY;
    }
    return INFINITY;
}

/* Returns the bound of glu(g, u) for |g| <= @g and |u| <= @u (op.h). */
static double bounds_glu(const struct op_ffn *f, double g, double u) {
    if (f->glu == GLU_XIELU)
        return fmax(fabs(xielu_at(&f->xielu, (float)g)), fabs(xielu_at(&f->xielu, (float)-g)));
    if (f->glu == GLU_CLAMPED)
        return fmin(g, 7) * (fmin(u, 7) + 1);
    if (f->limit > 0)
        return fmin(g, f->limit) * fmin(u, f->limit);
    return g * u; /* silu(g), gelu(g) and max(g, 0) are at most |g| */
}

/* Returns the bound of the output of the GATE_UP op @op. */
static double bounds_ffn(const struct model_shape *m, const struct model_op *op) {
    size_t n = op->w[0]->ne[1];
    double *gate = malloc(n * sizeof(*gate)), *up = malloc(n * sizeof(*up)), most = 0;

    assert(gate && up && op->norm);
    bounds_product(m, op, 0, gate);
    for (size_t o = 0; o < n; o++)
        up[o] = 1;
    if (op->w[1])
        bounds_product(m, op, 1, up);
    for (size_t o = 0; o < n; o++)
        most = fmax(most, bounds_glu(&op->ffn, gate[o], up[o]));
    free(gate);
    free(up);
    return ROUNDING * most;
}

/* Returns the bound of the input of the PROJ op @i, whose input is the output of an FFN. */
static double bounds_hidden(const struct model *m, uint32_t i) {
    for (uint32_t k = i; k-- > 0;) {
        const struct model_op *op = &m->op[k];

        if (op->kind == OP_GATE_UP)
            return op->norm ? bounds_ffn(&m->shape, op) : INFINITY;
        if (op->kind == OP_GATE_IN)
            return INFINITY;
    }
    return INFINITY;
}

struct bounds_input bounds_of(const struct model *m, uint32_t i) {
    const struct model_op *op = &m->op[i];

    switch (op->kind) {
    case OP_QKV:
    case OP_KEYS:
    case OP_GATE:
    case OP_GATE_UP:
    case OP_ROUTE:
    case OP_STATE_IN:
    case OP_MLA_IN:
    case OP_LOGITS:
        return (struct bounds_input){BOUNDS_NORM, (float)bounds_norm(&m->shape, op)};
    case OP_PROJ:
        if (op->in == ACT_O)
            return (struct bounds_input){BOUNDS_ATTENTION, (float)bounds_heads(m, i)};
        if (op->in == ACT_H)
            return (struct bounds_input){BOUNDS_FFN, (float)bounds_hidden(m, i)};
        break;
    default:
        break;
    }
    return (struct bounds_input){BOUNDS_KINDS, INFINITY};
}
