/*
 * compressed - grids and arguments of the kernels of kernels_compressed.h. Products compute queries
 * and keys. The parts of attention's output are multiplied like the heads of latent attention
 * (cuda_latent.c), all in one product. A grid depends only on the numbers of rows and sequences, so
 * steps with these ops can be recorded as graphs.
 */

#include "engine/cuda/cuda.h"

#include <assert.h>
#include <math.h>

#include "base/try.h"
#include "engine/compressed.h"
#include "engine/cuda/load.h"
#include "engine/ops/compressed/kernels_compressed.h"

const char *indexer_lacks(uint32_t n_head, uint32_t dim) {
    static_assert(PICK_DIM == 128 && PICK_HEADS == 256 && PICK_QUERY == 8192, "as the texts say");
    if (dim > PICK_DIM || n_head > PICK_HEADS)
        return "indexers of more than 256 heads or 128 values each";
    return round_up(n_head, 16) * round_up(dim, 32) > PICK_QUERY
               ? "indexers of more than 8192 values for a row"
               : NULL;
}

const char *compressed_lacks(const struct model_shape *s, const struct model_op *op) {
    const struct compressed_shape *c = &s->compressed;

    static_assert(HC_STREAMS == 8, "as the texts say");
    if (op->kind == OP_HC_OUT && s->stream.rounds && s->stream.n > HC_STREAMS)
        return "more than 8 residual streams";
    return op->kind == OP_CSA_INDEX ? indexer_lacks(c->n_index, c->index_dim) : NULL;
}

/* -- residual streams -------------------------------------------------------------------------- */

/* Computes OP_HC_OUT. The buffer of the queries has b, a branch's sum (residual.c). */
int step_hc_out(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct hc_out_args a = {
        .batch = b->head,
        .x = op->begins ? b->act.x : b->act.q,
        .weight = op->begins ? NULL : b->compressed.weight,
        .s = b->compressed.s,
        .n = b->shape->n_embd,
        .n_stream = b->shape->stream.n,
        .shares = b->shape->stream.rounds > 0,
    };

    return CUDA_LAUNCH(b, hc_out, s->grid.rows, (a.n + CUDA_THREADS - 1) / CUDA_THREADS,
                       CUDA_THREADS, &a);
}

int step_hc_mean(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct hc_out_args a = {
        .batch = b->head,
        .s = b->compressed.s,
        .mean = b->act.x,
        .n = b->shape->n_embd,
        .n_stream = b->shape->stream.n,
    };

    return CUDA_LAUNCH(b, hc_mean, s->grid.rows, (a.n + CUDA_THREADS - 1) / CUDA_THREADS,
                       CUDA_THREADS, &a);
}

int step_hc_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    const struct stream_shape *t = &b->shape->stream;
    const struct hc_in_args a = {
        .batch = b->head,
        .s = b->compressed.s,
        .low = b->compressed.low,
        .scale = w->weigh,
        .base = w->pick_bias,
        .x = b->act.x,
        .b = b->act.q,
        .weight = b->compressed.weight,
        .n = b->shape->n_embd,
        .n_stream = t->n,
        .rounds = t->rounds,
        .n_low = w->m[0].n_out,
        .eps = t->eps,
        .rms_eps = b->shape->rms_eps,
    };

    assert(w->n_mats == 1 && w->n_in == a.n * a.n_stream);
    TRY(step_pack(s, PACK_PLAIN, a.s, NULL, w->n_in));
    TRY(step_multiply(s, w, false));
    return CUDA_LAUNCH(b, hc_in, s->grid.rows, 1, CUDA_THREADS, &a);
}

/* -- keys and queries -------------------------------------------------------------------------- */

static struct csa_rope rope_of(const struct be *b, const struct model_op *op, uint32_t dim) {
    uint32_t n_rot = b->shape->rope[op->rope].n_rot;

    return (struct csa_rope){dim, dim - n_rot, n_rot, b->shape->rope_type == ROPE_NEOX};
}

/* Rotates the @n_head heads of @dim values of each row of @x; with @normed, divides them by their
 * rms and multiplies by the norm first. */
static int cuda_compressed_turn(struct step *s, const struct model_op *op, float *x,
                                uint32_t n_head, uint32_t dim, bool normed) {
    struct be *b = s->be;
    const struct turn_args a = {
        .batch = b->head,
        .x = x,
        .norm = op->weights->k_norm,
        .rope = b->act.rope[op->rope],
        .turn = rope_of(b, op, dim),
        .n_head = n_head,
        .normed = normed,
        .eps = b->shape->rms_eps,
    };

    return CUDA_LAUNCH(b, turn_heads, s->grid.rows, (n_head + 7) / 8, CUDA_THREADS, &a);
}

int step_norm_heads(struct step *s, float *x, const float *norm, uint32_t n, uint32_t dim) {
    struct be *b = s->be;
    const struct turn_args a = {
        .batch = b->head,
        .x = x,
        .norm = norm,
        .turn = {.dim = dim},
        .n_head = n,
        .normed = true,
        .by_head = true,
        .eps = b->shape->rms_eps,
    };

    return CUDA_LAUNCH(b, turn_heads, s->grid.rows, (n + 7) / 8, CUDA_THREADS, &a);
}

/* Computes OP_CSA_IN, except for the norm of r, which is applied when r is packed. */
int step_csa_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;

    TRY(step_norm(s, op));
    TRY(step_multiply(s, w, false));
    return cuda_compressed_turn(s, op, b->compressed.key, 1, b->shape->head_dim, true);
}

/* Multiplies the norm of r, which CSA_IN has left, by the op's matrix. */
static int multiply_low(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    const struct model_op *in = op->links.from;

    assert(in && w->n_mats == 1 && w->n_in == s->be->shape->compressed.q_rank);
    TRY(step_pack(s, PACK_NORM, s->be->compressed.r, in->weights->q_norm, w->n_in));
    return step_multiply(s, w, false);
}

int step_csa_q(struct step *s, const struct model_op *op) {
    const struct model_shape *m = s->be->shape;

    TRY(multiply_low(s, op));
    return cuda_compressed_turn(s, op, s->be->act.q, m->n_head, m->head_dim, true);
}

/* -- keys of blocks ---------------------------------------------------------------------------- */

static struct block_keys cuda_compressed_keys(const struct be *b, const struct model_op *op,
                                              uint32_t n) {
    struct block_keys k = {.pages = b->memory.kv[KV_GLOBAL].pages,
                           .page_bytes = b->memory.kv[KV_GLOBAL].page_bytes,
                           .page_tokens = b->opts->page_tokens,
                           .block = op->csa.block,
                           .n = n};

    if (op->csa.block)
        k.at = compressed_at(b->shape, k.page_tokens, k.block, op->csa.first_value, n, 0);
    return k;
}

/* Returns the number of values from one state to the next. */
static size_t stride_of(const struct be *b) {
    return state_floats(&b->shape->state);
}

static int cuda_compressed_save(struct step *s, const struct keep_rows_args *a) {
    return CUDA_LAUNCH(s->be, keep_rows, s->grid.seqs, a->n_kept, CUDA_THREADS, a);
}

int step_compress(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    bool is_short = op->csa.block == BLOCK_SHORT;
    uint32_t n = (uint32_t)op->k_norm->ne[0];
    const struct compress_args a = {
        .batch = b->head,
        .u = b->compressed.u,
        .g = b->compressed.g,
        .place = w->weigh,
        .state = recurrent_more(b, op),
        .stride = stride_of(b),
        .end = {.norm = w->k_norm,
                .freq = b->load.freq[op->rope],
                .keys = cuda_compressed_keys(b, op, n),
                .turn = rope_of(b, op, n),
                .eps = b->shape->rms_eps,
                .mscale = 1},
        .width = w->m[0].n_out,
        .n_kept = is_short ? 2 * op->csa.block : op->csa.block,
        .overlaps = is_short,
    };
    const struct keep_rows_args kept = {
        .batch = b->head,
        .from = {a.u, a.g},
        .state = (float *)a.state,
        .stride = a.stride,
        .n_from = 2,
        .width = a.width,
        .n_kept = a.n_kept,
    };

    assert(w->n_mats == 2 && a.width == (is_short ? 2 * n : n) && n <= CSA_DIM);
    TRY(step_norm(s, op));
    TRY(step_multiply(s, w, false));
    TRY(CUDA_LAUNCH(b, compress, s->grid.rows, 1, CUDA_THREADS, &a));
    return cuda_compressed_save(s, &kept);
}

/* Returns the number of blocks that share the keys of each of @n rows: two for each
 * multiprocessor. */
static uint32_t cuda_compressed_parts(const struct be *b, uint32_t n) {
    return MAX(2 * (uint32_t)b->about.device.n_multiprocessors / n, 1u);
}

struct pick_args step_pick_args(const struct be *b, const struct block_keys *keys,
                                uint32_t n_head) {
    return (struct pick_args){
        .batch = b->head,
        .q = b->indexer.q,
        .score = b->indexer.score,
        .pick = b->indexer.pick,
        .n_pick = b->indexer.n_pick,
        .keys = *keys,
        .n_head = n_head,
        .n_best = b->indexer.n_best,
        .stride = b->indexer.max_blocks,
        .block = keys->block,
        .n_set = 1,
    };
}

int step_choose(struct step *s, const struct pick_args *of) {
    struct be *b = s->be;
    struct pick_args a = *of;

    for (; a.row0 < s->grid.rows; a.row0 += PICK_ROWS) {
        uint32_t n = MIN(s->grid.rows - a.row0, PICK_ROWS), parts = cuda_compressed_parts(b, n);

        if (a.n_local)
            TRY(CUDA_LAUNCH(b, score_heads, n, parts, CUDA_THREADS, &a));
        else
            TRY(CUDA_LAUNCH(b, score_blocks, n, parts, CUDA_THREADS, &a));
        TRY(CUDA_LAUNCH(b, choose_blocks, n, a.n_set, CUDA_THREADS, &a));
    }
    return 0;
}

int step_csa_index(struct step *s, const struct model_op *op) {
    const struct compressed_shape *c = &s->be->shape->compressed;
    const struct block_keys keys = cuda_compressed_keys(s->be, op, c->index_dim);
    struct pick_args a = step_pick_args(s->be, &keys, c->n_index);

    a.weight = s->be->compressed.t;
    a.by = 1.0f / sqrtf((float)(c->n_index * c->index_dim));
    TRY(multiply_low(s, op));
    TRY(cuda_compressed_turn(s, op, s->be->indexer.q, c->n_index, c->index_dim, false));
    return step_choose(s, &a);
}

/* -- attention --------------------------------------------------------------------------------- */

/* Keeps the keys of the step's last rows in the window of the op's layer. */
int step_csa_keys(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct keep_rows_args a = {
        .batch = b->head,
        .from = {b->compressed.key},
        .state = b->recurrent.state + window_at(b->shape, op),
        .stride = stride_of(b),
        .n_from = 1,
        .width = b->shape->head_dim,
        .n_kept = window_rows(b->shape, op),
    };

    return cuda_compressed_save(s, &a);
}

int step_csa_attend(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    bool picks = op->csa.block == BLOCK_SHORT;
    const struct csa_args a = {
        .batch = b->head,
        .q = b->act.q,
        .key = b->compressed.key,
        .sinks = op->weights->sinks,
        .state = b->recurrent.state + window_at(b->shape, op),
        .rope = b->act.rope[op->rope],
        .o = b->act.o,
        .pick = picks ? b->indexer.pick : NULL,
        .n_pick = picks ? b->indexer.n_pick : NULL,
        .stride = stride_of(b),
        .keys = cuda_compressed_keys(b, op, m->head_dim),
        .turn = rope_of(b, op, m->head_dim),
        .n_head = m->n_head,
        .window = m->compressed.window,
        .n_kept = window_rows(m, op),
        .n_best = b->indexer.n_best,
        .scale = m->attn_scale,
    };
    uint32_t groups = (a.n_head + CSA_HEADS - 1) / CSA_HEADS;

    assert(m->head_dim <= CSA_DIM);
    TRY(CUDA_LAUNCH(b, attend_compressed, s->grid.rows, groups, CUDA_THREADS, &a));
    return step_csa_keys(s, op);
}

/* Computes OP_CSA_OUT: one product for all parts, at the first part, whose weights include the
 * others' (load.c). */
int step_csa_out(struct step *s, const struct model_op *op) {
    return op->part ? 0 : latent_multiply(s, op, s->be->act.o, op->weights->n_in);
}

static void memory_compressed(struct be *b) {
    const struct model_shape *s = b->shape;
    const struct compressed_shape *c = &s->compressed;
    struct compressed *to = &b->compressed;
    size_t rows = b->opts->max_rows, widest = MAX(s->head_dim, c->index_dim);

    if (c->window == 0)
        return;
    memory_add_words(b, &to->r, rows * c->q_rank);
    memory_add_words(b, &to->key, rows * s->head_dim);
    memory_add_words(b, &to->t, rows * c->n_index);
    memory_add_words(b, &to->u, rows * 2 * widest);
    memory_add_words(b, &to->g, rows * 2 * widest);
    memory_add_indexer(b, c->n_index * c->index_dim,
                       MAX(b->opts->max_context / BLOCK_SHORT + 1, c->n_block), c->n_block, 1);
}

const struct op_family compressed_family = {.scratch = memory_compressed};

/* -- rows of the table of ops (engine/cuda/ops.c) ---------------------------------------------- */

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

const struct op_code cuda_op_hc_out = {
    .run = step_hc_out,
    .lacks = compressed_lacks,
    .family = &streams_family,
};

const struct op_code cuda_op_hc_in = {
    .run = step_hc_in,
    .out = {BE_AT(compressed.low)},
    .family = &streams_family,
};

const struct op_code cuda_op_hc_mean = {
    .run = step_hc_mean,
    .family = &streams_family,
};

const struct op_code cuda_op_csa_in = {
    .run = step_csa_in,
    .out = {BE_AT(compressed.r), BE_AT(compressed.key), BE_AT(compressed.t)},
    .adds = CUDA_ADDITIONS,
    .family = &compressed_family,
};

const struct op_code cuda_op_csa_keys = {
    .run = step_csa_keys,
    .family = &recurrent_family,
};

const struct op_code cuda_op_csa_q = {
    .run = step_csa_q,
    .out = {BE_AT(act.q)},
    .takes = OP_BIT(OP_CSA_IN),
};

const struct op_code cuda_op_compress = {
    .run = step_compress,
    .decodes = true,
    .out = {BE_AT(compressed.u), BE_AT(compressed.g)},
    .adds = CUDA_ADDITIONS,
    .family = &recurrent_family,
};

const struct op_code cuda_op_csa_index = {
    .run = step_csa_index,
    .lacks = compressed_lacks,
    .out = {BE_AT(indexer.q)},
    .takes = OP_BIT(OP_CSA_IN),
    .family = &compressed_family,
};

const struct op_code cuda_op_csa_attend = {
    .run = step_csa_attend,
    .family = &recurrent_family,
};

const struct op_code cuda_op_csa_out = {
    .run = step_csa_out,
    .load = load_output_parts,
    .out = {BE_AT(recurrent.out)},
    .list = LIST_HEADS,
    .family = &latent_family,
};
