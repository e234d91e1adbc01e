/*
 * ops - the table of the kinds of ops: for each, what the backend lacks, how its weights are
 * loaded, where its products go, and its function.
 */

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/cuda/several.h"

/* -- what the backend lacks: op_code.lacks ----------------------------------------------------- */

static const char *heads_lack(const struct model_shape *s, const struct heads *h) {
    bool widest = h->dim == s->widest.head; /* is refused with its size */

    return h->dim % 8 && !widest ? "heads whose size 8 does not divide" : NULL;
}

static const char *embed_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    return op->w[1] || op->w[2] ? "learned positions" : NULL;
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
    return op->w[1] ? NULL : "layers that read the keys of others";
}

static const char *delta_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    bool mixed = op->recurrent.joined && s->delta.tiled;

    return mixed ? "delta nets with joined betas and tiled heads" : NULL;
}

static const char *latent_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    return op->w[0]->scale ? "latent heads in NVFP4" : NULL;
}

static const char *gate_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    return op->w[0] ? "gates of heads with weights of their own" : NULL;
}

static const char *ffn_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    return op->w[1] == op->w[0] || !op->w[1] ? "FFNs without gates" : NULL;
}

/* Matrices that each device has completely: op_division.keeps. Those of MLA_IN produce latent
 * vectors, if w[1] does not produce the queries. */
static bool mla_in_keeps(const struct model_shape *s, int i) {
    return i == 0 || s->mla.q_rank;
}

static const char *qkv_lacks(const struct model_shape *s, const struct model_op *op) {
    const char *what = heads_lack(s, &op->heads);

    if (op->qkv.temper.ahead)
        return "temperatures that begin ahead";
    if (what || !op->qkv.gated)
        return what;
    if (op->bias[0])
        return "gated queries with biases";
    if (op->heads.dim % TILE_ROWS)
        return "gated heads whose size 16 does not divide";
    return s->delta.n_key_head ? NULL : "gated queries without delta nets";
}

static const char *attend_lacks(const struct model_shape *s, const struct model_op *op) {
    if (s->encoder)
        return "attention of encoders";
    if (op->attn.chunked)
        return "attention in chunks";
    if (s->mla.rank)
        return latent_lacks(s);
    const char *what = heads_lack(s, &op->heads);
    return !what && op->attn.sparse ? sparse_lacks(s, op) : what;
}

static const char *mla_in_lacks(const struct model_shape *s, const struct model_op *op) {
    return latent_lacks(s);
}

static const char *keys_lacks(const struct model_shape *s, const struct model_op *op) {
    return op->qkv.norm_all ? "drafting blocks with norms over all heads together" : NULL;
}

static const char *norm_lacks(const struct model_shape *s, const struct model_op *op) {
    return op->norm_bias ? "norms with biases" : NULL;
}

static const char *logits_lacks(const struct model_shape *s, const struct model_op *op) {
    return op->bias[0] ? "logits with biases" : NULL;
}

static const char *tap_lacks(const struct model_shape *s, const struct model_op *op) {
    if (s->mla.rank)
        return "block drafters beside latent attention";
    return s->n_embd % 4 ? "block drafters beside rows whose width 4 does not divide" : NULL;
}

bool load_has_relu_gates(const struct model_op *op) {
    return op->ffn.glu == GLU_RELU && op->w[0] != op->w[1];
}

static const char *gate_up_lacks(const struct model_shape *s, const struct model_op *op) {
    if (op->ffn.glu == GLU_XIELU)
        return "FFNs with xIELU";
    if (!op->w[1])
        return "GELU without gates";
    if (op->ffn.sparsity > 0)
        return "FFNs with sparse gates";
    return load_has_relu_gates(op) ? "FFNs with rectified gates" : NULL;
}

/* -- where products go: op_code.place ---------------------------------------------------------- */

static float *place_proj(const struct be *b, const struct model_op *op, int i) {
    return residual_target(b, op);
}

static float *place_state_in(const struct be *b, const struct model_op *op, int i) {
    if (op->state_in.low == LOW_DOWN)
        return b->recurrent.low[i];
    return op->state_in.parts ? recurrent_part(b, (uint32_t)i)
                              : b->recurrent.in[op->state_in.first + i];
}

static float *place_mla_in(const struct be *b, const struct model_op *op, int i) {
    if (i == 0)
        return b->act.k;
    return b->shape->mla.q_rank ? b->latent.r : b->latent.q;
}

static float *place_logits(const struct be *b, const struct model_op *op, int i) {
    return b->group.n > 1 ? b->sampling.z : b->sampling.logits;
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
    for (struct weights *w = b->weights; w; w = w->next)
        if (w->embedding == t && !w->raw.data)
            w->m[0] = from->m[0];
}

/* Returns the queries of all heads, or the gates, which follow the queries of each head. */
static struct parts half_of_heads(const struct heads *h, bool gates) {
    return (struct parts){h->n, h->dim, 2 * h->dim, gates ? h->dim : 0, 0};
}

/* Loads a MIX: w[1] and w[2] multiply the streams; w[0] multiplies the low-rank result of w[1], and
 * becomes @w->down. */
static int load_mix(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    w->down = load_weights_new(b);
    if (!w->down)
        return -ENOMEM;
    TRY(load_matrix(b, w->down, op->w[0], NULL, load_place(b, op, 0), err));
    for (int i = 1; i < 3; i++)
        TRY(op->w[i] ? load_matrix(b, w, op->w[i], NULL, load_place(b, op, i), err) : 0);
    return 0;
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

/* Loads a matrix that multiplies the row, and one or two tables. */
static int load_with_tables(struct be *b, struct weights *w, const struct model_op *op,
                            struct err *err) {
    TRY(load_matrix(b, w, op->w[0], NULL, load_place(b, op, 0), err));
    TRY(load_table(b, op->w[1], &w->raw, err));
    return op->w[2] ? load_table(b, op->w[2], &w->after_raw, err) : 0;
}

/* Loads the parts of an output, which are one tensor, with the first of their ops, as matrices of
 * experts. */
static int load_output_parts(struct be *b, struct weights *w, const struct model_op *op,
                             struct err *err) {
    struct tensor all = *op->w[0];
    uint32_t n = b->shape->compressed.n_group;

    if (op->part)
        return 0;
    all.ne[2] = n;
    all.n_dims = 3;
    all.n_bytes *= n;
    all.scale = NULL; /* one number for all parts, applied below */
    const struct parts rows = load_all_rows(&all);
    TRY(load_parts(b, w, &all, &rows, NULL, load_place(b, op, 0), err));
    w->m[0].inverse *= op->w[0]->scale ? load_first_of(op->w[0]->scale) : 1;
    return 0;
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

/* Uses the buffer of rows that a step copies (cuda_ngram.c) as the table, which stays in the
 * file. */
static void name_table(const struct be *b, struct weights *w, const struct model_op *op) {
    uint32_t n = b->opts->max_rows * ngram_n_rows(b->shape);

    w->raw = load_source(b, op->ngram.table, b->streams.rows, n);
}

static int ops_load_norm(struct be *b, struct weights *w, const struct model_op *op,
                         struct err *err) {
    return op->norm ? 0 : load_ones(b, &w->norm, err);
}

static int load_recurrent(struct be *b, struct weights *w, const struct model_op *op,
                          struct err *err) {
    const struct op_recurrent *r = &op->recurrent;
    const struct tensor *const conv[] = {r->conv, r->conv_more[0], r->conv_more[1]};

    TRY(load_vector(b, r->dt, &w->dt, err));
    TRY(load_vector(b, r->decay, &w->decay, err));
    TRY(load_vector(b, r->skip, &w->skip, err));
    TRY(load_vector(b, r->conv_bias, &w->conv_bias, err));
    return load_decoded(b, conv, r->conv_more[0] ? 3 : 1, &w->taps, err);
}

/* Loads the matrices; the products of LOW_UP have inputs of their own, so that w[1] becomes
 * @w->down. */
static int load_state_in(struct be *b, struct weights *w, const struct model_op *op,
                         struct err *err) {
    if (op->state_in.low != LOW_UP)
        return load_matrices(b, w, op, err);
    w->down = load_weights_new(b);
    if (!w->down)
        return -ENOMEM;
    TRY(load_matrix(b, w, op->w[0], NULL, load_place(b, op, 0), err));
    return load_matrix(b, w->down, op->w[1], NULL, load_place(b, op, 1), err);
}

static int ops_load_ngram(struct be *b, struct weights *w, const struct model_op *op,
                          struct err *err) {
    TRY(load_decoded(b, &op->ngram.conv, 1, &w->taps, err));
    name_table(b, w, op);
    return load_matrices(b, w, op, err);
}

static int load_chain(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    TRY(load_table(b, op->w[1], &w->raw, err));
    return load_table(b, op->w[0], &w->after_raw, err);
}

static int load_qkv(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    if (op->qkv.gated)
        return load_gated(b, w, op, err);
    return load_matrices(b, w, op, err);
}

static int load_gate_up(struct be *b, struct weights *w, const struct model_op *op,
                        struct err *err) {
    if (!ffn_is_hosts(b->shape, op->layer))
        return load_matrices(b, w, op, err);
    return cuda_counts(b) ? 0 : ffn_load_host(b, w, op, err);
}

static int load_proj(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    if (op->in == ACT_H && ffn_is_hosts(b->shape, op->layer))
        return 0;
    return load_matrices(b, w, op, err);
}

static int load_logits(struct be *b, struct weights *w, const struct model_op *op,
                       struct err *err) {
    TRY(load_matrices(b, w, op, err));
    lend_tiles(b, w, op->w[0]);
    return 0;
}

/* -- the table --------------------------------------------------------------------------------- */

/* The offset of a member in struct be, for op_code.out. */
#define AT(member) offsetof(struct be, member)
/* Kinds whose addition to x is computed with the norm of the next op, for op_code.adds. */
#define ADDITIONS                                                                                  \
    (OP_BIT(OP_PROJ) | OP_BIT(OP_JOIN) | OP_BIT(OP_EXPERTS) | OP_BIT(OP_SHARED) |                  \
     OP_BIT(OP_BLOCK_OUT) | OP_BIT(OP_DEEP))
/* Kinds whose result PROJ completes: gates, functions of gate and up, and rows that are packed. */
#define INPUTS                                                                                     \
    (OP_BIT(OP_ATTEND) | OP_BIT(OP_GATE) | OP_BIT(OP_GATE_UP) | OP_BIT(OP_GATE_IN) |               \
     OP_BIT(OP_DELTA) | OP_BIT(OP_KDA) | OP_BIT(OP_MAMBA) | OP_BIT(OP_MLA_OUT))

const struct op_code cuda_code[OP_KINDS] = {
    [OP_EMBED] = {.run = step_embed,
                  .load = load_embedding,
                  .division = {CUT_FIRST, .lacks = embed_divided_lacks, .run = ranks_embed}},
    [OP_NORM] = {.run = step_norm_x, .lacks = norm_lacks, .load = ops_load_norm},
    [OP_QKV] = {.run = step_qkv,
                .lacks = qkv_lacks,
                .load = load_qkv,
                .out = {AT(act.q), AT(act.k), AT(act.v)},
                .adds = ADDITIONS,
                .takes = OP_BIT(OP_BLOCK_IN),
                .division = {CUT_ROWS, .lacks = qkv_divided_lacks}},
    [OP_ATTEND] = {.run = step_attend,
                   .lacks = attend_lacks,
                   .takes = OP_BIT(OP_QKV), /* step_attend_stores() */
                   .list = LIST_KEYS,
                   .family = &attention_family,
                   .division = {CUT_ROWS}},
    [OP_GATE] = {.run = step_gate,
                 .out = {AT(act.q)},
                 .division = {CUT_ROWS, .lacks = gate_divided_lacks, .part = {ranks_gate}}},
    [OP_PROJ] = {.run = step_proj,
                 .load = load_proj,
                 .place = place_proj,
                 .takes = INPUTS,
                 /* the matrix of the shared expert adds to the experts' sum */
                 .division = {CUT_ROWS, .part = {ranks_proj}, .reads = true, .adds = true,
                              .takes = OP_BIT(OP_EXPERTS) | OP_BIT(OP_GATE_UP)}},
    [OP_GATE_UP] = {.run = step_gate_up,
                    .lacks = gate_up_lacks,
                    .load = load_gate_up,
                    .out = {AT(act.gate), AT(act.up)},
                    .adds = ADDITIONS,
                    .takes = OP_BIT(OP_BLOCK_IN),
                    .family = &experts_host_family,
                    .division = {CUT_ROWS, .lacks = ffn_divided_lacks, .part = {ranks_gate_up}}},
    [OP_GATE_IN] = {.run = step_gate_in, .out = {AT(act.gate)}, .adds = ADDITIONS},
    [OP_LAYER_INPUT] = {.run = step_layer_input,
                        .load = load_with_tables,
                        .out = {AT(act.layer_input)},
                        .adds = ADDITIONS},
    [OP_JOIN] = {.run = step_join, .division = {CUT_ROWS}},
    [OP_ROUTE] = {.run = step_route,
                  .lacks = route_lacks,
                  .load = load_route,
                  .out = {AT(experts.logits)},
                  .adds = ADDITIONS,
                  .family = &experts_family,
                  .division = {CUT_LOADER}},
    [OP_EXPERTS] = {.run = step_experts,
                    .lacks = experts_lacks,
                    .load = load_experts,
                    .out = {AT(experts.gate), AT(experts.up), AT(experts.y)},
                    .takes = OP_BIT(OP_ROUTE),
                    .family = &experts_family,
                    .division = {CUT_LOADER, .lacks = experts_divided_lacks,
                                 .part = {experts_own_gates, experts_own_sum}, .adds = true}},
    [OP_SHARED] = {.run = step_shared,
                   .lacks = shared_lacks,
                   .load = load_shared,
                   .takes = OP_BIT(OP_EXPERTS),
                   .family = &experts_family,
                   .division = {CUT_ROWS, .keeps = shared_keeps,
                                .part = {shared_own_gates, shared_own_sum}, .adds = true}},
    [OP_STATE_IN] = {.run = step_state_in,
                     .load = load_state_in,
                     .place = place_state_in,
                     .adds = ADDITIONS,
                     .division = {CUT_LOADER, .load = recurrent_load_part}},
    [OP_DELTA] = {.run = step_delta,
                  .lacks = recurrent_lacks,
                  .load = load_recurrent,
                  .family = &recurrent_family,
                  .division = {CUT_LOADER, .lacks = delta_divided_lacks,
                               .load = recurrent_load_part}},
    [OP_KDA] = {.run = step_delta,
                .lacks = recurrent_lacks,
                .load = load_recurrent,
                .family = &recurrent_family},
    [OP_CONV] = {.run = step_conv,
                 .lacks = recurrent_lacks,
                 .load = load_recurrent,
                 .family = &recurrent_family},
    [OP_MAMBA] = {.run = step_mamba,
                  .lacks = recurrent_lacks,
                  .load = load_recurrent,
                  .family = &recurrent_family},
    [OP_KEEP] = {.run = step_keep, .family = &draft_family},
    [OP_DRAFT_IN] = {.run = step_draft_in, .out = {AT(act.x)}, .family = &draft_family},
    [OP_KEYS] = {.run = step_keys,
                 .lacks = keys_lacks,
                 .out = {AT(act.k), AT(act.v)},
                 .adds = ADDITIONS},
    [OP_HOLES] = {.run = step_holes},
    [OP_MLA_IN] = {.run = step_in,
                   .lacks = mla_in_lacks,
                   .place = place_mla_in,
                   .adds = ADDITIONS,
                   .division = {CUT_ROWS, .keeps = mla_in_keeps}},
    [OP_MLA_Q] = {.run = step_mla_q, .out = {AT(latent.q)}, .division = {CUT_ROWS}},
    [OP_MLA_KV] = {.run = step_mla_kv,
                   .out = {AT(act.q)},
                   .list = LIST_HEADS,
                   .family = &latent_family,
                   .division = {CUT_ROWS, .lacks = latent_divided_lacks}},
    [OP_MLA_OUT] = {.run = step_mla_out,
                    .out = {AT(act.q)},
                    .list = LIST_HEADS,
                    .family = &latent_family,
                    .division = {CUT_ROWS, .lacks = latent_divided_lacks}},
    [OP_DEEP] = {.run = step_deep, .adds = ADDITIONS, .division = {CUT_ROWS}},
    [OP_LOGITS] = {.run = step_logits,
                   .lacks = logits_lacks,
                   .load = load_logits,
                   .place = place_logits,
                   .division = {CUT_ROWS, .run = ranks_logits}},
    [OP_TAP] = {.run = step_tap, .lacks = tap_lacks, .family = &draft_family},
    /* after the logits, whose hidden states are in x */
    [OP_FUSE] = {.run = step_fuse, .out = {AT(act.o)}, .family = &draft_family},
    [OP_BLOCK_IN] = {.run = step_block_in,
                     .decodes = true,
                     .out = {AT(draft.d)},
                     .adds = ADDITIONS},
    [OP_BLOCK_OUT] = {.run = step_block_out, .decodes = true},
    [OP_SELECT] = {.run = step_select,
                   .load = load_with_tables,
                   .out = {AT(draft.g)},
                   .takes = OP_BIT(OP_LOGITS)},
    [OP_CHAIN] = {.run = step_select, .load = load_chain, .takes = OP_BIT(OP_LOGITS)},
    [OP_HC_OUT] = {.run = step_hc_out, .lacks = compressed_lacks, .family = &streams_family},
    [OP_HC_IN] = {.run = step_hc_in, .out = {AT(compressed.low)}, .family = &streams_family},
    [OP_MIX] = {.run = step_mix,
                .load = load_mix,
                .out = {AT(streams.gate), AT(compressed.low), AT(compressed.weight)},
                .family = &streams_family},
    [OP_NGRAM] = {.run = step_ngram,
                  .load = ops_load_ngram,
                  .out = {AT(streams.gate), AT(act.q)},
                  .family = &recurrent_family},
    [OP_CSA_IN] = {.run = step_csa_in,
                   .out = {AT(compressed.r), AT(compressed.key), AT(compressed.t)},
                   .adds = ADDITIONS,
                   .family = &compressed_family},
    [OP_CSA_Q] = {.run = step_csa_q, .out = {AT(act.q)}, .takes = OP_BIT(OP_CSA_IN)},
    [OP_COMPRESS] = {.run = step_compress,
                     .decodes = true,
                     .out = {AT(compressed.u), AT(compressed.g)},
                     .adds = ADDITIONS,
                     .family = &recurrent_family},
    [OP_CSA_INDEX] = {.run = step_csa_index,
                      .lacks = compressed_lacks,
                      .out = {AT(indexer.q)},
                      .takes = OP_BIT(OP_CSA_IN),
                      .family = &compressed_family},
    [OP_CSA_OUT] = {.run = step_csa_out,
                    .load = load_output_parts,
                    .out = {AT(recurrent.out)},
                    .list = LIST_HEADS,
                    .family = &latent_family},
    [OP_CSA_ATTEND] = {.run = step_csa_attend, .family = &recurrent_family},
    [OP_CSA_KEYS] = {.run = step_csa_keys, .family = &recurrent_family},
    [OP_INDEX] = {.run = step_index,
                  .lacks = sparse_lacks,
                  .out = {AT(indexer.q), AT(sparse.k)},
                  .adds = ADDITIONS,
                  .family = &sparse_family},
};

uint32_t ops_families(const struct model_shape *s, const struct op_family *out[OP_KINDS]) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_ops; i++) {
        const struct op_family *family = cuda_code[s->op[i].kind].family;
        uint32_t k = 0;

        while (k < n && out[k] != family)
            k++;
        if (family && k == n)
            out[n++] = family;
    }
    return n;
}
