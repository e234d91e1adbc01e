/*
 * host_experts - implements struct host_experts_ops (backend.h): computes experts in host memory
 * for a device that computes the rest of their layers. The code is that of the CPU backend, so the
 * output of an expert has the same bits as there.
 */

#include <assert.h>
#include <errno.h>

#include "engine/cpu/state.h"

/* State: a CPU backend that has only the buffers for experts. Invariant: op[i], i < n, is the op
 * that host_experts_run() calls layer i, and is loaded. */
struct host_experts {
    struct be *be;
    struct model_op op[MODEL_LAYERS_MAX];
    uint32_t n;
};

/* Implements host_experts_ops.close. Accepts an object that host_experts_open_parts() left
 * half-built. */
static struct host_experts *close_experts(struct host_experts *h) {
    if (!h)
        return NULL;
    backend_cpu.close(h->be);
    free(h);
    return NULL;
}

/* Opens the parts of a backend that experts_beside() needs: kernels, threads and buffers. Returns 0
 * or -errno. */
static int host_experts_open_parts(struct be *b, const struct model_shape *shape,
                                   const struct engine_opts *o, struct err *err) {
    b->shape = *shape;
    b->max_rows = o->max_rows;
    b->step.be = b;
    b->kernels = isa_find(o->isa, err);
    if (!b->kernels)
        return -EINVAL;
    int r = pool_new(&b->pool, o->n_threads);
    if (r < 0) {
        err_set(err, 0, NULL, "cannot start %u threads", o->n_threads);
        return r;
    }
    b->scratch = be_map(b, pool_n_threads(b->pool) * sizeof(*b->scratch));
    b->row_width = round_up(shape->n_embd, LANES);
    b->row = be_alloc(b, pool_n_threads(b->pool), b->row_width * sizeof(float));
    r = experts_open(b);
    if (r < 0)
        err_set(err, 0, NULL, "not enough memory for the experts' buffers of %u rows", b->max_rows);
    return r;
}

/* Implements host_experts_ops.open. */
static int open_experts(struct host_experts **out, const struct model_shape *shape,
                        const struct engine_opts *o, struct err *err) {
    struct host_experts *h = calloc(1, sizeof(*h));
    int r = -ENOMEM;

    assert(shape->n_expert > 0);
    if (h && (h->be = calloc(1, sizeof(*h->be))))
        r = host_experts_open_parts(h->be, shape, o, err);
    if (r < 0) {
        close_experts(h);
        return r;
    }
    *out = h;
    return 0;
}

/* Implements host_experts_ops.load. */
static int host_experts_load(struct host_experts *h, const struct model_op *op,
                             const struct model_op *normed, struct err *err) {
    struct model_op *mine = &h->op[h->n];

    assert(op->kind == OP_EXPERTS && h->n < MODEL_LAYERS_MAX);
    *mine = *op;
    if (!op->ffn.latent) {
        mine->norm = normed->norm;
        mine->norm_bias = normed->norm_bias;
    }
    mine->ffn.latent = false; /* the device gives the rows of the latent space */
    mine->weights = NULL;
    mine->post_norm = mine->weigh = NULL; /* the device applies these */
    int r = backend_cpu.load(h->be, mine, &mine->weights, err);
    h->n += r == 0;
    return r;
}

/* Implements host_experts_ops.run. */
static void host_experts_run(struct host_experts *h, uint32_t layer, uint32_t n_rows,
                             const float *x, const uint32_t *expert, const float *weight,
                             float *y) {
    assert(layer < h->n && n_rows <= h->be->max_rows);
    h->be->step.n_rows = n_rows;
    if (n_rows > 0)
        experts_beside(&h->be->step, &h->op[layer], x, expert, weight, y);
}

const struct host_experts_ops host_experts_cpu = {open_experts, close_experts, host_experts_load,
                                                  host_experts_run};
