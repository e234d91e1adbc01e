#include "tests/engine/bounds.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/cuda/bounds.h"

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

/* Returns the bound of the values that @op stores in pages of f16. */
static double bounds_values(const struct model_shape *m, const struct model_op *op) {
    if (op->kind == OP_QKV && op->qkv.v_unit)
        return BOUNDS_ROUNDING * sqrt(op->heads.dim);
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

/* Returns the bound of the input of the PROJ op @i, whose input is the output of an FFN. */
static double bounds_hidden(const struct model *m, uint32_t i) {
    for (uint32_t k = i; k-- > 0;) {
        const struct model_op *op = &m->op[k];

        if (op->kind == OP_GATE_UP)
            return bounds_ffn(&m->shape, op);
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
