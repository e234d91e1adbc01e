#include "engine/cuda/bounds.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/gguf.h"
#include "engine/formats/quant.h"

/* Returns element @i of @t, which is F32 and need not be aligned. */
static float bounds_at(const struct tensor *t, size_t i) {
    float f;

    memcpy(&f, t->data + sizeof(f) * i, sizeof(f));
    return f;
}

/* Returns the largest magnitude of @n values of @t; NULL: @otherwise. With fmax() in place of the
 * comparison, gcc 12 for ARM ends with an internal error when it vectorises the loop. */
static double bounds_vector(const struct tensor *t, size_t n, double otherwise) {
    double most = 0;

    for (size_t i = 0; i < n && t; i++) {
        double size = fabs(bounds_at(t, i));

        if (size > most)
            most = size;
    }
    if (t)
        return most;
    return otherwise;
}

double bounds_norm(const struct model_shape *m, const struct model_op *op) {
    size_t n = op->width;

    if (!op->norm || op->norm->ne[0] != n) /* or the norm of something else */
        return INFINITY;
    double bias = 0;

    if (m->layer_norm)
        bias = bounds_vector(op->norm_bias, n, 0);
    return BOUNDS_ROUNDING * (sqrt((double)n) * bounds_vector(op->norm, n, 1) + bias);
}

void bounds_product(const struct model_shape *m, const struct model_op *op, int i, double *most) {
    const struct tensor *w = op->w[i];
    size_t n = w->ne[0];
    float *row = malloc(n * sizeof(*row));

    assert(op->norm && n == op->width);
    for (size_t o = 0; o < w->ne[1]; o++) {
        double square = 0, plus = op->bias[i] ? bounds_at(op->bias[i], o) : 0;

        if (row)
            quant_decode_row(w, o, row);
        for (size_t k = 0; k < n && row; k++) {
            double factor = (double)row[k] * bounds_at(op->norm, k);

            square += factor * factor;
            if (m->layer_norm && op->norm_bias)
                plus += (double)row[k] * bounds_at(op->norm_bias, k);
        }
        if (row)
            most[o] = BOUNDS_ROUNDING * (sqrt((double)n * square) + fabs(plus));
        else
            most[o] = INFINITY;
    }
    free(row);
}

/* Returns the bound of glu(g, u) for |g| <= @g and |u| <= @u (op.h). */
static double bounds_glu(const struct op_ffn *f, double g, double u) {
    if (f->glu == GLU_XIELU || f->sparsity > 0)
        return INFINITY;
    if (f->glu == GLU_CLAMPED)
        return fmin(g, 7) * (fmin(u, 7) + 1);
    if (f->limit > 0)
        return fmin(g, f->limit) * fmin(u, f->limit);
    return g * u; /* silu(g), gelu(g) and max(g, 0) are at most |g| */
}

double bounds_ffn(const struct model_shape *m, const struct model_op *op) {
    size_t n = op->w[0]->ne[1];
    double *gate = malloc(2 * n * sizeof(*gate)), *up = gate + n, most = 0;

    if (!isfinite(bounds_norm(m, op)) || !gate) {
        free(gate);
        return INFINITY;
    }
    bounds_product(m, op, 0, gate);
    for (size_t o = 0; o < n; o++)
        up[o] = 1;
    if (op->w[1])
        bounds_product(m, op, 1, up);
    for (size_t o = 0; o < n; o++)
        most = fmax(most, bounds_glu(&op->ffn, gate[o], up[o]));
    free(gate);
    return BOUNDS_ROUNDING * most;
}

/* Returns the bound of the product with op->w[i]. */
static double bounds_largest(const struct model_shape *m, const struct model_op *op, int i) {
    size_t n_out = op->w[i]->ne[1];
    double *most = malloc(n_out * sizeof(*most)), all = 0;

    if (!most)
        return INFINITY;
    bounds_product(m, op, i, most);
    for (size_t o = 0; o < n_out; o++)
        all = fmax(all, most[o]);
    free(most);
    return all;
}

/* Returns the bound of the values that @op, a KEYS or QKV, stores in pages of f16. */
static double bounds_values(const struct model_shape *m, const struct model_op *op) {
    if (op->kind == OP_QKV && op->qkv.v_unit)
        return BOUNDS_ROUNDING * sqrt(op->heads.dim);
    if (!isfinite(bounds_norm(m, op)))
        return INFINITY;
    if (op->kind == OP_KEYS)
        return bounds_largest(m, op, 1);
    return bounds_largest(m, op, op->w[2] ? 2 : 1);
}

double bounds_attend(const struct model_shape *m, const struct model_op *op) {
    const struct kv_layer *kv = &op->kv;

    for (uint32_t k = (uint32_t)(op - m->op); k-- > 0;) {
        const struct model_op *from = &m->op[k];
        bool stores = from->kind == OP_KEYS || from->kind == OP_QKV;

        if (stores && from->w[1] && from->kv.cls == kv->cls && from->kv.layer == kv->layer)
            return bounds_values(m, from);
    }
    return INFINITY;
}

float bounds_scale(double most) {
    int e;

    if (!isfinite(most) || most <= 0)
        return 0;
    frexp(most, &e);
    if (e < -99 || e > 99)
        return 0;
    return ldexpf(1, BOUNDS_EXPONENT - e);
}
