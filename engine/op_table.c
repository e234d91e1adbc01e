#include "engine/op_table.h"

#include <assert.h>

/* Functions that count the cost of an op; the second part of a name is the column of op_list.h. */
typedef void measure_op(const struct model_shape *s, const struct model_op *op,
                        struct op_cost *out);

/* The input is multiplied by all matrices. */
static void measure_products(const struct model_shape *s, const struct model_op *op,
                             struct op_cost *out) {
    for (int i = 0; i < OP_MATRICES; i++) {
        if (!op->w[i])
            continue;
        out->read += op->w[i]->n_bytes;
        out->in = MAX(out->in, op->w[i]->ne[0]);
        out->out += op->w[i]->ne[1];
    }
}

/* Each token has some of the experts. */
static void measure_experts(const struct model_shape *s, const struct model_op *op,
                            struct op_cost *out) {
    measure_products(s, op, out);
    out->read = out->read / s->n_expert * op->n_used;
    out->in *= op->n_used;
    out->out *= op->n_used;
}

/* Single rows are read of tables. */
static void measure_rows(const struct model_shape *s, const struct model_op *op,
                         struct op_cost *out) {}

/* Logits have a buffer by want. */
static void measure_logits(const struct model_shape *s, const struct model_op *op,
                           struct op_cost *out) {
    measure_products(s, op, out);
    out->in = out->out = 0;
}

/* The matrices but the first are tables. */
static void measure_chain(const struct model_shape *s, const struct model_op *op,
                          struct op_cost *out) {
    out->read = op->w[0]->n_bytes;
}

#define OP(kind, name, feature, cost) [OP_##kind] = {#name, feature, measure_##cost},

static const struct op_row {
    const char *name, *feature;
    measure_op *measure;
} op_rows[] = {
#include "engine/op_list.h"
};

#undef OP

const char *op_name(enum op_kind kind) {
    assert((unsigned)kind < OP_KINDS);
    return op_rows[kind].name;
}

const char *op_feature(enum op_kind kind) {
    assert((unsigned)kind < OP_KINDS && op_rows[kind].feature);
    return op_rows[kind].feature;
}

struct op_cost op_measure(const struct model_shape *s, const struct model_op *op) {
    struct op_cost cost = {0};

    assert((unsigned)op->kind < OP_KINDS && op_rows[op->kind].measure);
    op_rows[op->kind].measure(s, op, &cost);
    return cost;
}
