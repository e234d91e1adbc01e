#include "tests/engine/bounds.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/cuda/bounds.h"

/* Returns the bound of the input of the PROJ op @i, whose input is attention's output: what gates
 * multiply it by is at most 1 if it is a sigmoid. */
static double bounds_heads(const struct model *m, uint32_t i) {
    for (uint32_t k = i; k-- > 0;) {
        const struct model_op *op = &m->op[k];

        if (op->kind == OP_GATE && op->w[0] && !op->sigmoid)
            return INFINITY;
        if (op->kind == OP_ATTEND)
            return bounds_attend(&m->shape, op);
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
