/*
 * sparse - grids and arguments of the kernels of kernels_sparse.h. An indexer chooses blocks as for
 * compressed keys. A grid depends only on the numbers of rows and sequences, so steps with these
 * ops can be recorded as graphs.
 */

#include "engine/cuda/cuda.h"

#include <assert.h>
#include <math.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/ops/sparse/kernels_sparse.h"
#include "engine/sparse.h"

const char *sparse_lacks(const struct model_shape *s, const struct model_op *op) {
    static_assert(SPARSE_DIM == 256, "as the texts say");
    if (op->kind == OP_HEAD_INDEX && !s->sparse.n_local)
        return "blocks of key heads of which none is always seen";
    if (op->kind != OP_ATTEND)
        return indexer_lacks(s->sparse.n_head, s->sparse.dim);
    return op->heads.dim > SPARSE_DIM ? "sparse attention with heads of more than 256 values"
                                      : NULL;
}

/* UINT16_MAX: the most that a grid's y can be */
void sparse_divide(struct be *b) {
    const struct model_shape *s = b->shape;
    uint32_t n_value = s->mla.rank ? s->mla.rank : s->head_dim;
    size_t row = (size_t)b->sparse.n_parts * s->n_head * (n_value + 4) * sizeof(float);

    if (row == 0)
        return;
    b->attention.partial_bytes = MAX(b->attention.partial_bytes, row);
    b->sparse.n_rows = (uint32_t)MIN(b->attention.partial_bytes / row, UINT16_MAX / s->n_head);
}

size_t sparse_page_bytes(const struct be *b) {
    return b->shape->sparse.n_layer * index_bytes(b->shape, b->opts->page_tokens);
}

/* Returns the place of the blocks' keys of the op's layer: pages of their own, after the pages of
 * all layers' keys and values. */
static struct block_keys sparse_keys(const struct be *b, const struct model_op *op) {
    const struct kv_class *kv = &b->memory.kv[KV_GLOBAL];
    uint32_t page_tokens = b->opts->page_tokens;
    size_t before = kv->page_bytes - sparse_page_bytes(b);

    return (struct block_keys){.pages = kv->pages + kv->n_pages * before,
                               .page_bytes = sparse_page_bytes(b),
                               .at = op->index * index_bytes(b->shape, page_tokens) / 2,
                               .page_tokens = page_tokens,
                               .block = b->shape->sparse.ratio,
                               .n = b->shape->sparse.dim};
}

/* Returns the rotation of the indexer's queries and keys. */
static struct csa_rope sparse_rope(const struct model_shape *m) {
    return (struct csa_rope){m->sparse.dim, 0, m->rope[0].n_rot, m->rope_type == ROPE_NEOX};
}

/* Returns the argument that stores the mean of each block of positions as its key. */
static struct mean_args sparse_mean_args(const struct be *b, const struct model_op *op) {
    return (struct mean_args){
        .batch = b->head,
        .k = b->sparse.k,
        .stride = state_floats(&b->shape->state),
        .end = {.norm = op->weights->k_norm,
                .freq = b->load.freq[0],
                .keys = sparse_keys(b, op),
                .turn = sparse_rope(b->shape),
                .eps = b->shape->rms_eps,
                .mscale = b->shape->rope[0].mscale},
    };
}

/* Normalises and rotates the queries of the indexer. */
static int sparse_turn_queries(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct turn_args a = {
        .batch = b->head,
        .x = b->indexer.q,
        .norm = op->weights->q_norm,
        .rope = b->act.rope[0],
        .turn = sparse_rope(b->shape),
        .n_head = b->shape->sparse.n_head,
        .normed = true,
        .eps = b->shape->rms_eps,
    };

    assert(op->weights->n_mats == 2 && a.turn.n_rot <= a.turn.dim);
    return CUDA_LAUNCH(b, turn_heads, s->grid.rows, (a.n_head + 7) / 8, CUDA_THREADS, &a);
}

/* Stores the keys of the blocks that end in the step, and keeps the keys of the last tokens in the
 * state, for the next block. */
static int sparse_store_keys(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    struct mean_args a = sparse_mean_args(b, op);

    a.state = recurrent_more(b, op);
    const struct keep_rows_args kept = {
        .batch = b->head,
        .from = {a.k},
        .state = (float *)a.state,
        .stride = a.stride,
        .n_from = 1,
        .width = m->sparse.dim,
        .n_kept = m->sparse.ratio,
    };

    TRY(CUDA_LAUNCH(b, mean_keys, s->grid.rows, 1, CUDA_THREADS, &a));
    return CUDA_LAUNCH(b, keep_rows, s->grid.seqs, kept.n_kept, CUDA_THREADS, &kept);
}

int step_index(struct step *s, const struct model_op *op) {
    const struct block_keys keys = sparse_keys(s->be, op);
    const struct pick_args a = step_pick_args(s->be, &keys, s->be->shape->sparse.n_head);

    TRY(step_in(s, op));
    TRY(sparse_turn_queries(s, op));
    TRY(sparse_store_keys(s, op));
    return step_choose(s, &a);
}

/* Stores the key of each position, which is the mean of a block of one, and chooses for each
 * head. */
int step_head_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct sparse_shape *p = &b->shape->sparse;
    const struct mean_args keys = sparse_mean_args(b, op);
    struct pick_args a = step_pick_args(b, &keys.end.keys, p->n_head);

    assert(p->ratio == 1 && p->block % 16 == 0 && p->n_local > 0);
    a.block = p->block;
    a.n_set = p->n_head;
    a.n_local = p->n_local;
    TRY(step_in(s, op));
    TRY(sparse_turn_queries(s, op));
    TRY(CUDA_LAUNCH(b, mean_keys, s->grid.rows, 1, CUDA_THREADS, &keys));
    return step_choose(s, &a);
}

/* Computes k, g and t, and stores the keys of the blocks that end in the step. The state keeps k
 * and g of the last tokens. */
int step_pool_keys(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    const struct sparse_shape *p = &b->shape->sparse;
    const struct keep_args norm = {
        .batch = b->head,
        .x = b->sparse.k,
        .weight = w->k_norm,
        .bias = w->norm_bias,
        .hidden = b->sparse.k,
        .n = p->dim,
        .centred = true,
        .eps = p->eps,
    };
    const struct compress_args keys = {
        .batch = b->head,
        .u = b->sparse.k,
        .g = b->sparse.g,
        .place = w->weigh,
        .state = recurrent_more(b, op),
        .stride = state_floats(&b->shape->state),
        .end.keys = sparse_keys(b, op),
        .width = p->dim,
        .n_kept = pool_rows(b->shape, op),
    };
    const struct keep_rows_args kept = {
        .batch = b->head,
        .from = {b->sparse.k, b->sparse.g},
        .state = (float *)keys.state,
        .stride = keys.stride,
        .n_from = 2,
        .width = p->dim,
        .n_kept = keys.n_kept,
    };

    assert(w->n_mats == 3 && p->dim <= CSA_DIM);
    TRY(step_in(s, op));
    TRY(CUDA_LAUNCH(b, keep, s->grid.rows, 1, PACK_THREADS, &norm));
    TRY(CUDA_LAUNCH(b, compress, s->grid.rows, 1, CUDA_THREADS, &keys));
    return CUDA_LAUNCH(b, keep_rows, s->grid.seqs, kept.n_kept, CUDA_THREADS, &kept);
}

int step_pool_index(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    const struct sparse_shape *p = &b->shape->sparse;
    const struct block_keys keys = sparse_keys(b, op);
    struct pick_args a = step_pick_args(b, &keys, p->n_head);

    assert(w->n_mats == 1 && w->n_in == b->shape->mla.q_rank);
    a.weight = b->sparse.t;
    a.by = 1.0f / sqrtf((float)(p->n_head * p->dim));
    TRY(step_pack(s, PACK_NORM, b->latent.r, w->norm, w->n_in));
    TRY(step_multiply(s, w, false));
    return step_choose(s, &a);
}

int sparse_attend(struct step *s, const struct model_op *op, const struct attend_args *of) {
    static kernel_address *const kernels[] = {FOR_PAGES(ATTEND_ADDRESS, attend_sparse)},
                                 *const latent[] = {
                                     FOR_PAGES_ALIKE(ATTEND_ADDRESS, attend_sparse_latent)};
    struct be *b = s->be;
    const struct heads *h = &op->heads;
    const struct attn *w = &op->attn;
    struct sparse_args a = {
        .of = *of,
        .pick = b->indexer.pick,
        .n_pick = b->indexer.n_pick,
        .block = sparse_block(&b->shape->sparse),
        .n_best = b->indexer.n_best,
        .n_parts = b->sparse.n_parts,
        .n_set = sparse_sets(&b->shape->sparse),
    };
    uint32_t groups = (of->group + CSA_HEADS - 1) / CSA_HEADS, quads = h->n * of->n_value / 4;
    uint32_t format = attend_format(&of->shape);
    struct launch l = {*kernels[format], a.n_parts, 0, CUDA_THREADS, "attend_sparse", 0};

    if (of->shape.latent)
        l.kernel = *latent[format];

    assert(w->window == 0 && w->cap == 0 && !w->holes && !w->two_way && !w->whole && !op->sinks);
    for (; a.row0 < s->grid.rows; a.row0 += b->sparse.n_rows) {
        uint32_t n = MIN(s->grid.rows - a.row0, b->sparse.n_rows);

        l.grid_y = n * h->n_kv * groups;
        TRY(cuda_launch(b, &l, &a, sizeof(a)));
        TRY(CUDA_LAUNCH(b, merge_sparse, n, (quads + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS,
                        &a));
    }
    return 0;
}

void memory_add_indexer(struct be *b, size_t n, uint32_t max_blocks, uint32_t most,
                        uint32_t n_set) {
    struct indexer *to = &b->indexer;
    size_t rows = b->opts->max_rows;

    to->max_blocks = max_blocks;
    to->most = to->n_best = most;
    memory_add_words(b, &to->q, rows * n);
    memory_add_words(b, &to->score, MIN(rows, PICK_ROWS) * max_blocks * n_set);
    memory_add_words(b, &to->pick, rows * most * n_set);
    memory_add_words(b, &to->n_pick, rows);
}

static void memory_sparse(struct be *b) {
    const struct sparse_shape *p = &b->shape->sparse;

    if (p->n_layer == 0)
        return;
    uint32_t block = sparse_block(p), n_blocks = b->opts->max_context / block + 1;
    uint32_t most = MIN(p->n_block, n_blocks);
    size_t rows = b->opts->max_rows;
    memory_add_words(b, &b->sparse.k, rows * p->dim);
    memory_add_words(b, &b->sparse.g, rows * (p->eps > 0 ? p->dim : 0));
    memory_add_words(b, &b->sparse.t, rows * (p->eps > 0 ? p->n_head : 0));
    memory_add_indexer(b, p->n_head * p->dim, n_blocks, most, sparse_sets(p));
    b->sparse.n_parts = ((most + 1) * block - 1 + SPARSE_PART - 1) / SPARSE_PART;
}

const struct op_family sparse_family = {.scratch = memory_sparse};

/* -- rows of the table of ops (engine/cuda/ops.c) ---------------------------------------------- */

const struct op_code cuda_op_index = {
    .run = step_index,
    .lacks = sparse_lacks,
    .out = {BE_AT(indexer.q), BE_AT(sparse.k)},
    .adds = CUDA_ADDITIONS,
    .family = &sparse_family,
};

const struct op_code cuda_op_head_index = {
    .run = step_head_index,
    .lacks = sparse_lacks,
    .out = {BE_AT(indexer.q), BE_AT(sparse.k)},
    .adds = CUDA_ADDITIONS,
    .family = &sparse_family,
};

const struct op_code cuda_op_pool_keys = {
    .run = step_pool_keys,
    .lacks = sparse_lacks,
    .decodes = true,
    .out = {BE_AT(sparse.k), BE_AT(sparse.g), BE_AT(sparse.t)},
    .adds = CUDA_ADDITIONS,
    .family = &sparse_family,
};

const struct op_code cuda_op_pool_index = {
    .run = step_pool_index,
    .lacks = sparse_lacks,
    .out = {BE_AT(indexer.q)},
    .family = &sparse_family,
};
