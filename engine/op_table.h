#pragma once

/*
 * op_table - what the rows of op_list.h say of each kind of op: its name, how refusals name it, and
 * what it costs.
 */

#include "engine/backend.h"

/* Cost of an op for a row of the batch. */
struct op_cost {
    /* bytes of weights that are read for a token */
    uint64_t read;
    /* values of the widest input of its products */
    uint64_t in;
    /* values of its products that need a buffer */
    uint64_t out;
};

/* Returns the name of a kind, as "gate_up". */
const char *op_name(enum op_kind kind);
/* Returns how refusals name what models with ops of @kind have. */
const char *op_feature(enum op_kind kind);
/* Returns the cost of @op. */
struct op_cost op_measure(const struct model_shape *s, const struct model_op *op);
