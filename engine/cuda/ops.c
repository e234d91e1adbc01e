/*
 * ops - the table of the kinds of ops, and the rows of those that belong to no family: what the
 * backend lacks, how its weights are loaded, where its products go, and its function. The rows of a
 * family are in its own files (engine/ops, engine/cuda/rows/draft.c).
 */

#include <errno.h>
#include <stdlib.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/cuda/several.h"
#include "engine/op_table.h"

/* -- what the backend lacks: op_code.lacks ----------------------------------------------------- */

const char *heads_lack(const struct model_shape *s, const struct heads *h) {
    bool widest = h->dim == s->widest.head; /* is refused with its size */

    if (h->dim % 8 && !widest)
        return "heads whose size 8 does not divide";
    return NULL;
}

static const char *embed_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    if (op->w[1] || op->w[2])
        return "learned positions";
    return NULL;
}

bool ops_run_again(const struct model_shape *s, const struct model_op *op) {
    uint32_t i = (uint32_t)(op - s->op);

    return op_weights_of(s->op, i) != i;
}

static const char *qkv_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    if (ops_run_again(s, op))
        return "layers that run several times";
    if (s->layer_norm)
        return "layer norms";
    if (op->qkv.norm_all)
        return "norms over all heads together";
    if (op->qkv.norm_each)
        return "norms with weights for each head";
    if (heads_value(&op->heads) != op->heads.dim)
        return "values of another size than keys";
    if (op->w[1])
        return NULL;
    return "layers that read the keys of others";
}

static const char *gate_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    if (op->w[0])
        return "gates of heads with weights of their own";
    return NULL;
}

static const char *ffn_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    if (op->ffn.sparsity > 0)
        return "FFNs with sparse gates";
    if (op->w[1] == op->w[0] || !op->w[1])
        return "FFNs without gates";
    return NULL;
}

static const char *qkv_lacks(const struct model_shape *s, const struct model_op *op) {
    const char *what = heads_lack(s, &op->heads);

    if (what || !op->qkv.gated)
        return what;
    if (op->bias[0])
        return "gated queries with biases";
    if (op->heads.dim % TILE_ROWS)
        return "gated heads whose size 16 does not divide";
    if (s->delta.n_key_head)
        return NULL;
    return "gated queries without delta nets";
}

static const char *norm_lacks(const struct model_shape *s, const struct model_op *op) {
    if (op->norm_bias)
        return "norms with biases";
    return NULL;
}

bool load_has_relu_gates(const struct model_op *op) {
    return op->ffn.glu == GLU_RELU && op->w[0] != op->w[1];
}

static const char *gate_up_lacks(const struct model_shape *s, const struct model_op *op) {
    bool alone = op->ffn.glu == GLU_GELU || op->ffn.glu == GLU_XIELU;

    if (!op->w[1] && !alone)
        return "FFNs whose gates have no up values";
    if (load_has_relu_gates(op))
        return "FFNs with rectified gates";
    return NULL;
}

/* -- where products go: op_code.place ---------------------------------------------------------- */

static float *place_proj(const struct be *b, const struct model_op *op, int i) {
    return residual_target(b, op);
}

static float *place_logits(const struct be *b, const struct model_op *op, int i) {
    if (b->group.n > 1)
        return b->sampling.z;
    return b->sampling.logits;
}

/* -- weights: op_code.load --------------------------------------------------------------------- */

/* Returns true if @t is also the output matrix. In a model without one the embedding serves as
 * both, so only tiles are stored, unless several devices share the model. */
static bool comes_as_output(const struct be *b, const struct tensor *t) {
    return b->group.n == 1 && has_last_layer(b) && !gguf_find(b->opts->file, "output.weight") &&
           t == gguf_find(b->opts->file, "token_embd.weight") &&
           tile_is_legible((uint32_t)t->format->type);
}

/* Loads the rows of the embedding unchanged, unless the tiles of the output matrix serve as
 * both. */
static int load_embedding(struct be *b, struct weights *w, const struct model_op *op,
                          struct err *err) {
    const struct tensor *t = op->w[0];
    void *d = NULL;

    if (!comes_as_output(b, t))
        TRY(load_own(b, t->data, t->n_bytes, &d, err));
    w->n_in = (uint32_t)t->ne[0];
    w->embedding = t;
    w->raw = load_source(b, t, d, (uint32_t)t->ne[1]);
    return 0;
}

/* Gives the tiles of the output matrix to an embedding without rows of its own. */
static void lend_tiles(struct be *b, const struct weights *from, const struct tensor *t) {
    for (struct weights *w = b->load.list; w; w = w->next)
        if (w->embedding == t && !w->raw.data)
            w->m[0] = from->m[0];
}

/* Returns the queries of all heads, or the gates, which follow the queries of each head. */
static struct parts half_of_heads(const struct heads *h, bool gates) {
    return (struct parts){h->n, h->dim, 2 * h->dim, gates ? h->dim : 0, 0};
}

/* Loads queries and their gates, which the file has head by head, as two matrices. */
static int load_gated(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    const struct parts q = half_of_heads(&op->heads, false), gate = half_of_heads(&op->heads, true);

    TRY(load_parts(b, w, op->w[0], &q, NULL, b->act.q, err));
    if (op->w[1])
        TRY(load_matrix(b, w, op->w[1], op->bias[1], b->act.k, err));
    if (op->w[2])
        TRY(load_matrix(b, w, op->w[2], op->bias[2], b->act.v, err));
    return load_parts(b, w, op->w[0], &gate, NULL, b->act.o_gate, err);
}

int load_table(struct be *b, const struct tensor *t, struct tile_source *out, struct err *err) {
    void *d = NULL;
    int r = load_own(b, t->data, t->n_bytes, &d, err);

    *out = load_source(b, t, d, (uint32_t)t->ne[1]);
    return r;
}

int load_with_tables(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    TRY(load_matrix(b, w, op->w[0], NULL, load_place(b, op, 0), err));
    TRY(load_table(b, op->w[1], &w->raw, err));
    if (!op->w[2])
        return 0;
    return load_table(b, op->w[2], &w->after_raw, err);
}

/* Loads ones as the weights of a norm without weights. */
static int load_ones(struct be *b, float **out, struct err *err) {
    size_t n = b->shape->n_embd;
    CLEANUP(freep) float *ones = malloc(n * sizeof(*ones));

    if (!ones)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        ones[i] = 1;
    return load_own(b, ones, n * sizeof(*ones), (void **)out, err);
}

static int ops_load_norm(struct be *b, struct weights *w, const struct model_op *op,
                         struct err *err) {
    if (op->norm)
        return 0;
    return load_ones(b, &w->norm, err);
}

static int load_qkv(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    if (op->qkv.gated)
        return load_gated(b, w, op, err);
    return load_matrices(b, w, op, err);
}

static int load_gate_up(struct be *b, struct weights *w, const struct model_op *op,
                        struct err *err) {
    w->apart = op->ffn.sparsity > 0;
    if (!op_is_hosts(b->shape, op))
        return load_matrices(b, w, op, err);
    if (cuda_counts(b))
        return 0;
    return ffn_load_host(b, w, op, err);
}

static int load_proj(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    if (op_is_hosts(b->shape, op))
        return 0;
    return load_matrices(b, w, op, err);
}

static int load_logits(struct be *b, struct weights *w, const struct model_op *op,
                       struct err *err) {
    TRY(load_matrices(b, w, op, err));
    lend_tiles(b, w, op->w[0]);
    return 0;
}

/* -- rows of ops of no family ------------------------------------------------------------------ */

/* Kinds whose result PROJ completes: gates, functions of gate and up, and rows that are packed. */
#define INPUTS                                                                                     \
    (OP_BIT(OP_ATTEND) | OP_BIT(OP_GATE) | OP_BIT(OP_GATE_UP) | OP_BIT(OP_GATE_IN) |               \
     OP_BIT(OP_DELTA) | OP_BIT(OP_KDA) | OP_BIT(OP_MAMBA) | OP_BIT(OP_MLA_OUT))

const struct op_code cuda_op_embed = {
    .run = step_embed,
    .load = load_embedding,
    .division = {CUT_FIRST, .lacks = embed_divided_lacks},
};

const struct op_code cuda_op_norm = {
    .run = step_norm_x,
    .lacks = norm_lacks,
    .load = ops_load_norm,
};

const struct op_code cuda_op_qkv = {
    .run = step_qkv,
    .lacks = qkv_lacks,
    .load = load_qkv,
    .out = {BE_AT(act.q), BE_AT(act.k), BE_AT(act.v)},
    .adds = CUDA_ADDITIONS,
    .takes = OP_BIT(OP_BLOCK_IN),
    .division = {CUT_ROWS, .lacks = qkv_divided_lacks},
};

const struct op_code cuda_op_gate = {
    .run = step_gate,
    .out = {BE_AT(act.q)},
    .division = {CUT_ROWS, .lacks = gate_divided_lacks, .part = {ranks_gate}},
};

const struct op_code cuda_op_proj = {
    .run = step_proj,
    .load = load_proj,
    .place = place_proj,
    .takes = INPUTS,
    /* the matrix of the shared expert adds to the experts' sum */
    .division = {CUT_ROWS, .part = {ranks_proj}, .reads = true, .adds = true,
                 .takes = OP_BIT(OP_EXPERTS) | OP_BIT(OP_GATE_UP)},
};

const struct op_code cuda_op_gate_up = {
    .run = step_gate_up,
    .lacks = gate_up_lacks,
    .load = load_gate_up,
    .out = {BE_AT(act.gate), BE_AT(act.up)},
    .adds = CUDA_ADDITIONS,
    .takes = OP_BIT(OP_BLOCK_IN),
    .family = &experts_host_family,
    .division = {CUT_ROWS, .lacks = ffn_divided_lacks, .part = {ranks_gate_up}},
};

const struct op_code cuda_op_gate_in = {
    .run = step_gate_in,
    .out = {BE_AT(act.gate)},
    .adds = CUDA_ADDITIONS,
};

const struct op_code cuda_op_layer_input = {
    .run = step_layer_input,
    .load = load_with_tables,
    .out = {BE_AT(act.layer_input)},
    .adds = CUDA_ADDITIONS,
};

const struct op_code cuda_op_join = {
    .run = step_join,
    .division = {CUT_ROWS},
};

const struct op_code cuda_op_deep = {
    .run = step_deep,
    .adds = CUDA_ADDITIONS,
    .division = {CUT_ROWS},
};

const struct op_code cuda_op_logits = {
    .run = step_logits,
    .load = load_logits,
    .place = place_logits,
    .division = {CUT_ROWS, .run = ranks_logits},
};

/* -- the table --------------------------------------------------------------------------------- */

#define OP(kind, name, feature, cost) [OP_##kind] = &cuda_op_##name,

const struct op_code *const cuda_ops[OP_KINDS] = {
#include "engine/op_list.h"
};

#undef OP

uint32_t ops_families(const struct model_shape *s, const struct op_family *out[OP_KINDS]) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_ops; i++) {
        const struct op_family *family = cuda_ops[s->op[i].kind]->family;
        uint32_t k = 0;

        while (k < n && out[k] != family)
            k++;
        if (family && k == n)
            out[n++] = family;
    }
    return n;
}
