#pragma once

/*
 * fuse - decides, before weights are loaded, which neighbouring ops of a pass a backend computes
 * together. The rows of the backend say which kinds can be fused (op_code.adds, takes and list);
 * fusing fills in op_links of the ops. The result of an op's function then depends on its operands
 * and links alone, and not on what the step has run before.
 */

#include "base/buf.h"
#include "engine/model.h"

/* Sets the links of all ops of @m, pass by pass. Called once it is known which layers each device
 * has (be_ops.divide). */
void fuse_model(struct model *m, const struct be_ops *ops);
/* Sets the links of @n ops that are run as one pass of a model of shape @shape. */
void fuse_list(struct model_op *op, uint32_t n, const struct model_shape *shape,
               const struct be_ops *ops);
/* Writes the ops of each pass of @m, a line for each, with its links: "4 gate_up 0: adds 3 proj" is
 * op 4, in layer 0. Returns 0 or -errno of buf_printf(). */
int fuse_print(const struct model *m, struct buf *out);
