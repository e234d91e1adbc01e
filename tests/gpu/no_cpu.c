/*
 * no_cpu - replaces the CPU backend in programs that are built without it (tests/gpu/run). It has
 * only the functions that are called beside a device; keeping experts in host memory fails.
 */

#include <errno.h>

#include "engine/backend.h"
#include "engine/vision/ops.h"

/* Implements be_ops.stored_bytes, which place.c calls for all experts, even if none of them stays
 * in host memory. */
static uint64_t stored_bytes(const struct tensor *t) {
    return t->n_bytes;
}

/* Implements host_experts_ops.open. */
static int open_none(struct host_experts **out, const struct model_shape *shape,
                     const struct engine_opts *opts, struct err *err) {
    *out = NULL;
    err_set(err, 0, NULL, "this program has no CPU backend that could compute experts");
    return -ENOTSUP;
}

/* Implements host_experts_ops.close. */
static struct host_experts *close_none(struct host_experts *h) {
    return NULL;
}

const struct vis_ops vis_cpu = {.name = "cpu"};
const struct be_ops backend_cpu = {.name = "cpu", .stored_bytes = stored_bytes};
const struct host_experts_ops host_experts_cpu = {.open = open_none, .close = close_none};
