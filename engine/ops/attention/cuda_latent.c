/*
 * cuda_latent - the ops of latent attention (engine/op.h). The matrices of each head, attn_k_b
 * before attention and attn_v_b after it, are multiplied like experts (experts.cu): each head
 * counts as an expert that every row picks. So the lists are equal in all steps, and only the items
 * depend on the number of rows.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/ops/attention/kernels_attention.h"

uint32_t latent_query_width(const struct model_shape *m) {
    return m->mla.n_nope + m->head_dim - m->mla.rank;
}

static bool latent_is_few(const struct step *s) {
    return experts_few(s->be, s->grid.rows, 1);
}

/* Returns the number of items for all heads. */
static uint32_t latent_items_of(const struct step *s) {
    uint32_t columns = MATMUL_COLUMNS;

    if (latent_is_few(s))
        columns = EXPERT_ROWS;
    return latent_heads(s->be) * ((s->grid.rows + columns - 1) / columns);
}

uint32_t latent_heads(const struct be *b) {
    if (b->shape->mla.rank)
        return b->shape->n_head;
    return b->shape->compressed.n_group;
}

const char *latent_lacks(const struct model_shape *s) {
    const struct mla_shape *m = &s->mla;

    static_assert(LATENT_VALUE == 512 && LATENT_KEY == 576, "as the texts say");
    if (m->rank > LATENT_VALUE || s->head_dim > LATENT_KEY)
        return "latent vectors of more than 512 values, or 576 with those that turn";
    if (m->rank % 8 || s->head_dim % 8)
        return "latent vectors whose size 8 does not divide";
    return NULL;
}

/* Launches the list of items. */
static int list_items(struct step *s) {
    struct be *b = s->be;
    const struct heads_args a = {.batch = b->head,
                                 .n_head = latent_heads(b),
                                 .columns = latent_is_few(s) ? EXPERT_ROWS : MATMUL_COLUMNS,
                                 .item = b->latent.item,
                                 .n_items = b->latent.n_items};

    TRY(CUDA_LAUNCH(b, list_heads, 1, 1, CUDA_THREADS, &a));
    cuda_settle(b); /* the product reads the items before it waits for the previous kernel */
    return 0;
}

/* Multiplies each head's part of the rows of @x, @stride values apart, by the head's matrix, which
 * takes the first n_in values of the part. */
int latent_multiply(struct step *s, const struct model_op *op, const float *x, uint32_t stride) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    uint32_t n_head = latent_heads(b);
    struct pack_args pack = step_pack_args(b, PACK_PLAIN, x, NULL, w->n_in);
    struct expert_args a = {
        .m = {w->m[0]},
        .x = b->act.packed,
        .scale = b->act.scale,
        .n_mats = 1,
        .n_blocks = (uint32_t)round_up(w->n_in, 64) / 16,
        .n_used = ROUTE_PICKS,
        .n_experts = n_head,
        .by_pair = true,
        .item = b->latent.item,
        .n_items = b->latent.n_items,
        .list = b->latent.list,
        .stride = b->opts->max_rows,
        .settled = true,
    };

    assert(w->n_mats == 1 && stride >= w->n_in);
    pack.each = n_head;
    pack.x_stride = stride;
    pack.cores = false; /* the kernels of experts take rows packed for mma.sync */
    if (step_lists(s, op))
        TRY(list_items(s));
    TRY(CUDA_LAUNCH(b, pack, s->grid.rows * n_head, 1, PACK_THREADS, &pack));
    return experts_product(b, &a, latent_is_few(s), latent_items_of(s));
}

int step_mla_q(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    assert(w->n_mats == 1 && w->n_in == b->shape->mla.q_rank);

    TRY(step_pack(s, PACK_NORM, b->latent.r, w->norm, b->shape->mla.q_rank));
    return step_multiply(s, w, false);
}

int step_mla_kv(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    struct store_args a = step_store_args(b, op);

    a.latent = b->act.q;
    a.q = b->latent.q;
    a.k_norm = w->norm;
    a.n_rot = b->shape->head_dim - b->shape->mla.rank;
    a.width = latent_query_width(b->shape);
    if (b->shape->rope[op->rope].n_rot == 0)
        a.rope = NULL;
    TRY(latent_multiply(s, op, b->latent.q, a.width));
    return CUDA_LAUNCH(b, store_latent, s->grid.rows, (op->heads.n + 8) / 8, CUDA_THREADS, &a);
}

void latent_attend(const struct be *b, struct attend_args *a) {
    const struct model_shape *m = b->shape;

    a->turned = b->latent.q + m->mla.n_nope;
    a->turned_stride = latent_query_width(m);
}

/* Multiplies by attn_v_b. The result replaces the queries and is packed for the next projection;
 * several devices exchange it first. */
int step_mla_out(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;

    assert(op->weights->m[0].n_out == m->mla.n_value);
    TRY(latent_multiply(s, op, b->act.o, m->mla.rank));
    if (b->group.n > 1)
        return 0;
    return step_pack(s, PACK_PLAIN, b->act.q, NULL, m->n_head * m->mla.n_value);
}

/* -- buffers --------------------------------------------------------------------------------- */

/* Returns the most items of a step. */
static uint32_t latent_items(const struct be *b) {
    return latent_heads(b) * ((b->opts->max_rows + EXPERT_ROWS - 1) / EXPERT_ROWS);
}

static void memory_latent(struct be *b) {
    const struct model_shape *s = b->shape;
    size_t rows = b->opts->max_rows, width = s->mla.n_nope + s->head_dim - s->mla.rank;

    if (s->mla.rank) {
        memory_add_words(b, &b->latent.q, rows * s->n_head * width);
        memory_add_words(b, &b->latent.r, rows * s->mla.q_rank);
    }
    memory_add_words(b, &b->latent.list, rows * latent_heads(b));
    memory_add_words(b, &b->latent.n_items, 1);
    memory_add(b, &b->latent.item, latent_items(b), sizeof(struct expert_item), "activations",
               false);
}

/* Uploads the list of pairs of each head h: entry i is pair i n_head + h. */
static int clear_latent(struct be *b) {
    uint32_t n_head = latent_heads(b), n_rows = b->opts->max_rows;
    size_t n = (size_t)n_head * n_rows;

    CLEANUP(freep) uint32_t *list = calloc(n, sizeof(*list));
    if (!list)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        list[i] = (uint32_t)(i % n_rows * n_head + i / n_rows);
    return cuda_load_bytes(b, list, n * sizeof(*list), b->latent.list);
}

const struct op_family latent_family = {.scratch = memory_latent, .clear = clear_latent};

/* -- rows of the table of ops (engine/cuda/ops.c) ---------------------------------------------- */

/* Each device computes the latent vectors, those of w[1] unless it produces the queries. */
static struct op_cuts mla_in_cuts(const struct be *b, const struct model_op *op, uint32_t i) {
    return (struct op_cuts){.whole = i == 0 || b->shape->mla.q_rank};
}

static const char *mla_in_lacks(const struct model_shape *s, const struct model_op *op) {
    return latent_lacks(s);
}

static const char *latent_divided_lacks(const struct model_shape *s, const struct model_op *op) {
    if (op->w[0]->scale)
        return "latent heads in NVFP4";
    return NULL;
}

static float *place_mla_in(const struct be *b, const struct model_op *op, int i) {
    if (i == 0)
        return b->act.k;
    if (b->shape->mla.q_rank)
        return b->latent.r;
    return b->latent.q;
}

const struct op_code cuda_op_mla_in = {
    .run = step_in,
    .lacks = mla_in_lacks,
    .place = place_mla_in,
    .adds = CUDA_ADDITIONS,
    .division = {CUT_ROWS, .cuts = mla_in_cuts},
};

const struct op_code cuda_op_mla_q = {
    .run = step_mla_q,
    .out = {BE_AT(latent.q)},
    .division = {CUT_ROWS},
};

const struct op_code cuda_op_mla_kv = {
    .run = step_mla_kv,
    .out = {BE_AT(act.q)},
    .list = LIST_HEADS,
    .family = &latent_family,
    .division = {CUT_ROWS, .lacks = latent_divided_lacks},
};

const struct op_code cuda_op_mla_out = {
    .run = step_mla_out,
    .out = {BE_AT(act.q)},
    .list = LIST_HEADS,
    .family = &latent_family,
    .division = {CUT_ROWS, .lacks = latent_divided_lacks},
};
