/*
 * experts - mixtures of experts.
 *
 * ops_route() norms the rows, multiplies them by the router's matrix and picks the experts of each
 * row. ops_experts() then computes every pair of a row and a picked expert. A matrix of weights
 * should be read from memory once for all rows that need it, so the pairs are sorted by expert: the
 * pairs of an expert get consecutive places and are a group.
 *
 *     picks     row 0: experts 5, 2    row 1: experts 2, 7
 *     place     0: row 0, expert 2     1: row 1, expert 2
 *               2: row 0, expert 5     3: row 1, expert 7
 *     groups    expert 2: places 0 and 1    expert 5: place 2    expert 7: place 3
 *
 * The rows of a group are converted to activations in tiles of their own, and the gate and up
 * products of all groups run in one round of the thread pool, the down products in a second round.
 * Then every row adds up the outputs of its pairs in the order of its picks, the best first:
 *
 *   acc = fma(weight, output, acc) for each pick;  x = x + acc
 *
 * The output of an expert for a row has the same bits whatever other rows are in its group
 * (gemm_*.c). If the step has a single row, all groups use the same activations, which are
 * converted once.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/cpu/state.h"
#include "engine/experts.h"

/* The pairs of an expert: places [first, first + n_rows), in tiles from first_tile on. */
struct group {
    uint32_t expert, first, n_rows, first_tile;
};

/* Buffers for the largest batch, allocated at open except acts[]. Pairs and groups are those of the
 * current op. A pair is numbered row * n_expert_used + index of the pick. Invariant: places [0,
 * n_pairs) have the pairs whose expert this backend computes, group by group. */
struct experts {
    /* [max_rows][n_embd] */
    float *normed;
    /* [max_rows][n_expert] */
    float *router;
    /* [pairs] */
    struct expert_pick *pick;
    /* place of each pair; pair and expert of each place */
    uint32_t *place, *source, *in;
    /* [n_expert] */
    struct group *group;
    /* [n_expert] */
    struct matmul *mm;
    /* [n_layer][n_expert] picks since open; NULL: not counted */
    uint64_t *picks;
    /* [places][n_ff_expert], [places][n_embd] */
    float *hidden, *out;
    /* shared expert: [max_rows][n_ff_shared], [max_rows] */
    float *common, *weight;
    /* activations of the groups, in tiles */
    uint8_t *acts[ACTS_KINDS];
    size_t acts_size[ACTS_KINDS];
    uint32_t n_pairs, max_pairs;
};

/* Context of the row functions of an op. */
struct work {
    struct step *step;
    const struct model_op *op;
    const struct weights *w;
    /* rows of n_in values that are converted to activations of format kind, @stride apart */
    const float *in;
    uint32_t n_in;
    size_t stride;
    enum acts_kind kind;
    /* how ROUTE picks (experts.h) */
    struct expert_rule rule;
};

/* -- the choice of experts --------------------------------------------------------------------- */

/* Computes the norm of a row, as floats and as activations for the router. */
static void cpu_experts_norm_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct work *k = ctx;
    struct be *b = k->step->be;
    uint32_t n = b->shape.n_embd;
    float *y = b->experts->normed + (size_t)row * n;

    const float *x = b->act[ACT_X] + row * b->act_width[ACT_X];

    if (k->w->norm)
        ops_norm_input(b, k->w, x, y, n);
    else
        memcpy(y, x, n * sizeof(*y));
    b->kernels->acts_store[k->kind](y, n, b->acts[k->kind] + row * acts_bytes(k->kind, n, 1));
}

/* Picks the experts of a row, from the router's logits or by the token's row of a table. */
static void cpu_experts_pick_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct work *k = ctx;
    const struct model_shape *m = &k->step->be->shape;
    struct experts *e = k->step->be->experts;
    struct expert_pick *pick = e->pick + (size_t)row * m->n_expert_used;

    for (uint32_t i = 0; i < m->n_expert; i++)
        e->router[(size_t)row * m->n_expert + i] *= k->op->scale;
    if (k->op->picks) {
        experts_look_up(&k->w->embedding, (uint32_t)k->step->host.batch->token[row], pick);
        experts_weigh(e->router + (size_t)row * m->n_expert, &k->rule, pick);
        return;
    }
    experts_pick(e->router + (size_t)row * m->n_expert, &k->rule, pick);
    for (uint32_t i = k->rule.n_used; i < m->n_expert_used; i++)
        pick[i] = (struct expert_pick){NO_EXPERT, 0};
}

/* Leaves the normed rows in experts.normed for ops_experts(). */
int ops_route(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    struct work k = {
        .step = s,
        .op = op,
        .w = w,
        .kind = panel_infos[w->m[0].format].acts,
        .rule = experts_rule(&b->shape, op, w->pick_bias),
    };
    assert(b->experts && w->m[0].n_out == b->shape.n_expert);
    struct matmul mm = {
        .kernels = b->kernels,
        .mode = MATMUL_STORE,
        .n_mats = 1,
        .n_rows = s->n_rows,
        .m = {&w->m[0]},
        .out = {b->experts->router},
        .out_stride = {b->shape.n_expert},
        .scratch = b->scratch,
    };

    be_each(b, s->n_rows, cpu_experts_norm_row, &k);
    mm.acts[k.kind] = b->acts[k.kind];
    matmul_run(b->pool, &mm, 1);
    be_each(b, s->n_rows, cpu_experts_pick_row, &k);
    if (w->n_mats > 1)
        ops_store(s, ops_prepare(s, w, 1, 1, ACT_X), b->act[ACT_D], b->act_width[ACT_D]);
    return 0;
}

/* -- the products of the experts --------------------------------------------------------------- */

/* Sorts the pairs by expert, then by row: sets place, source, in and group. Pairs with NO_EXPERT
 * get no place. */
static void sort_pairs(struct experts *e, const struct model_shape *m, uint32_t n_rows) {
    uint32_t at = 0, tile = 0, n_picks = n_rows * m->n_expert_used;

    assert(n_picks <= e->max_pairs);
    for (uint32_t i = 0; i < m->n_expert; i++)
        e->group[i] = (struct group){.expert = i};
    for (uint32_t p = 0; p < n_picks; p++) {
        if (e->pick[p].expert == NO_EXPERT)
            continue;
        assert(e->pick[p].expert < m->n_expert);
        e->group[e->pick[p].expert].n_rows++;
    }
    for (uint32_t i = 0; i < m->n_expert; i++) {
        struct group *g = &e->group[i];

        g->first = at;
        g->first_tile = tile;
        at += g->n_rows;
        tile += (g->n_rows + TILE_MAX - 1) / TILE_MAX;
        g->n_rows = 0;
    }
    e->n_pairs = at;
    assert(at <= n_picks && tile <= at / TILE_MAX + MIN(m->n_expert, at));
    for (uint32_t p = 0; p < n_picks; p++) {
        if (e->pick[p].expert == NO_EXPERT)
            continue;
        struct group *g = &e->group[e->pick[p].expert];

        e->place[p] = g->first + g->n_rows++;
        e->source[e->place[p]] = p;
        e->in[e->place[p]] = e->pick[p].expert;
    }
}

/* Converts the row of a place to the tiles of its group. k->in has the rows of the batch, or with
 * experts.hidden the rows of the places. */
static void store_place(void *ctx, uint32_t place, uint32_t thread) {
    const struct work *k = ctx;
    const struct be *b = k->step->be;
    const struct experts *e = b->experts;
    const struct group *g = &e->group[e->in[place]];
    uint32_t at = g->first_tile * TILE_MAX + place - g->first;
    uint32_t row = k->in == e->hidden ? place : e->source[place] / b->shape.n_expert_used;
    const float *in = k->in + (size_t)row * k->stride;
    float *scaled = b->row + thread * b->row_width;

    if (k->op->ffn.early && k->in != e->hidden) {
        for (uint32_t i = 0; i < k->n_in; i++)
            scaled[i] = in[i] * e->pick[e->source[place]].weight;
        in = scaled;
    }
    b->kernels->acts_store[k->kind](in, k->n_in,
                                    e->acts[k->kind] + at * acts_bytes(k->kind, k->n_in, 1));
}

/* Converts rows @in to activations for @n_mats matrices of the experts from matrix @which on, which
 * may need different formats. @once: all groups use row 0. */
static void cpu_experts_fill_tiles(struct step *s, const struct model_op *op, const float *in,
                                   uint32_t which, uint32_t n_mats, bool once) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    uint32_t n_in = w->expert[0][which].n_in;
    struct work k = {.step = s, .op = op, .w = w, .in = in, .n_in = n_in, .stride = n_in};

    if (in == b->act[ACT_D])
        k.stride = b->act_width[ACT_D];
    for (uint32_t i = 0; i < n_mats; i++) {
        enum acts_kind kind = panel_infos[w->expert[0][which + i].format].acts;

        if (i > 0 && kind == k.kind)
            continue;
        k.kind = kind;
        if (once)
            b->kernels->acts_store[kind](in, k.n_in, b->experts->acts[kind]);
        else
            be_each(b, b->experts->n_pairs, store_place, &k);
    }
}

/* Computes the product of each group with matrix @which of its expert, with MATMUL_GLU also the
 * next matrix, to @out. @once: all groups use the activations of row 0. */
static void multiply_groups(struct step *s, const struct model_op *op, uint32_t which,
                            enum matmul_mode mode, float *out, bool once) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    struct experts *e = b->experts;
    uint32_t n_in = w->expert[0][which].n_in, n_out = w->expert[0][which].n_out, n = 0;

    for (uint32_t i = 0; i < b->shape.n_expert; i++) {
        const struct group *g = &e->group[i];

        if (!g->n_rows)
            continue;
        struct matmul *mm = &e->mm[n++];
        *mm = (struct matmul){
            .kernels = b->kernels,
            .mode = mode,
            .glu = op->ffn.glu,
            .limit = op->ffn.limit,
            .n_mats = mode == MATMUL_GLU ? 2 : 1,
            .n_rows = g->n_rows,
            .m = {&w->expert[i][which], &w->expert[i][which + (mode == MATMUL_GLU)]},
            .out = {out + (size_t)g->first * n_out},
            .out_stride = {n_out},
            .scratch = b->scratch,
        };
        for (uint32_t kind = 0; kind < ACTS_KINDS; kind++)
            if (e->acts[kind])
                mm->acts[kind] =
                    e->acts[kind] + (once ? 0 : g->first_tile) * acts_bytes(kind, n_in, TILE_MAX);
    }
    matmul_run(b->pool, e->mm, n);
}

/* Adds the outputs of a row's pairs, weighted, to x, or to b with op->branch; the best pick first.
 * In a latent space the sum replaces the row of d. */
static void cpu_experts_add_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct work *k = ctx;
    const struct be *b = k->step->be;
    const struct experts *e = b->experts;
    uint32_t n = (uint32_t)k->op->w[2]->ne[1], used = b->shape.n_expert_used;
    float *acc = b->row + thread * b->row_width;
    enum act_role to = op_sum(k->op);
    float *x = b->act[to] + row * b->act_width[to];
    const float *weigh = k->w->weigh;

    memset(acc, 0, n * sizeof(*acc));
    for (uint32_t p = row * used; p < row * used + k->op->n_used; p++) {
        float weight = 1.0f;

        if (!k->op->ffn.early)
            weight = e->pick[p].weight;
        weight *= weigh ? weigh[e->pick[p].expert] : 1.0f;

        b->kernels->add_scaled(acc, e->out + (size_t)e->place[p] * n, weight, n);
    }
    if (k->w->post_norm)
        b->kernels->norm(acc, k->w->post_norm, acc, n, b->shape.rms_eps);
    if (k->op->ffn.latent) {
        memcpy(x, acc, n * sizeof(*x));
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] += acc[i];
}

/* Computes the input of the experts of a row again, for an EXPERTS op with a norm of its own. */
static void norm_again(void *ctx, uint32_t row, uint32_t thread) {
    const struct work *k = ctx;
    const struct be *b = k->step->be;
    uint32_t n = b->shape.n_embd;

    ops_norm_input(b, k->w, b->act[ACT_X] + (size_t)row * n, b->experts->normed + (size_t)row * n,
                   n);
}

/* Implements each_fn: applies GELU to the hidden values of a pair. */
static void gelu_pair(void *ctx, uint32_t pair, uint32_t thread) {
    const struct be *b = ctx;
    uint32_t n = b->shape.n_ff_expert;

    b->kernels->gelu(b->experts->hidden + (size_t)pair * n, n);
}

/* Computes experts.out, the output of each pair, from experts.normed, or from d. */
static void compute_pairs(struct step *s, const struct model_op *op) {
    struct experts *e = s->be->experts;
    const float *in = e->normed;
    bool gated = op->w[1] || op->ffn.joined, once = s->n_rows == 1 && !op->ffn.early;

    assert(e && op->weights->expert); /* the model has experts */
    assert(gated || op->ffn.glu == GLU_GELU);
    sort_pairs(e, &s->be->shape, s->n_rows);
    if (e->n_pairs == 0)
        return;
    if (op->ffn.latent)
        in = s->be->act[ACT_D];
    cpu_experts_fill_tiles(s, op, in, 0, gated ? 2 : 1, once);
    multiply_groups(s, op, 0, gated ? MATMUL_GLU : MATMUL_STORE, e->hidden, once);
    if (!gated)
        be_each(s->be, e->n_pairs, gelu_pair, s->be);
    cpu_experts_fill_tiles(s, op, e->hidden, 2, 1, false);
    multiply_groups(s, op, 2, MATMUL_STORE, e->out, false);
}

/* Counts the picks of @layer. Draft blocks, which are numbered after the layers, are not counted.
 * Rows with a want stand for those that ops_narrow() has left out, so that layers can be
 * compared. */
static void cpu_experts_count_picks(struct step *s, uint32_t layer) {
    struct be *b = s->be;
    uint32_t n = b->shape.n_expert, weight = s->host.batch->n_rows / s->n_rows;

    for (uint32_t i = 0; b->experts->picks && layer < b->shape.n_layer && i < n; i++)
        b->experts->picks[(size_t)layer * n + i] += (uint64_t)weight * b->experts->group[i].n_rows;
}

const uint64_t *experts_picks(const struct be *b) {
    if (!b->experts)
        return NULL;
    return b->experts->picks;
}

int ops_experts(struct step *s, const struct model_op *op) {
    struct work k = {.step = s, .op = op, .w = op->weights};

    if (k.w->norm)
        be_each(s->be, s->n_rows, norm_again, &k);
    compute_pairs(s, op);
    cpu_experts_count_picks(s, op->layer);
    be_each(s->be, s->n_rows, cpu_experts_add_row, &k);
    return 0;
}

/* Context of the row functions that compute for a device. */
struct beside {
    struct be *be;
    const struct model_op *op;
    const struct weights *w;
    const float *x;
    const uint32_t *expert;
    const float *weight;
    float *y;
};

/* Copies or norms a row of a device to experts.normed, and takes those of its picks whose expert is
 * here. An invalid expert number, which is a defect of the device's kernels, is ignored here: the
 * backend's proof finds it (prove.h). */
static void cpu_experts_begin_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct beside *k = ctx;
    const struct be *b = k->be;
    size_t n = k->op->w[0]->ne[0], used = k->op->n_used;
    struct expert_pick *pick = b->experts->pick + row * b->shape.n_expert_used;
    const float *x = k->x + row * n;
    float *y = b->experts->normed + row * n;

    if (k->w->norm)
        ops_norm_input(b, k->w, x, y, (uint32_t)n);
    else
        memcpy(y, x, n * sizeof(*y));
    for (size_t i = 0; i < b->shape.n_expert_used; i++)
        pick[i] = (struct expert_pick){NO_EXPERT, 0};
    for (size_t i = 0; i < used; i++) {
        uint32_t expert = k->expert[row * used + i];
        bool here = expert < b->shape.n_expert && k->w->expert[expert][0].data;

        pick[i].weight = k->weight[row * used + i];
        if (here)
            pick[i].expert = expert;
    }
}

/* Copies the outputs of a row's pairs that were computed here to y. */
static void copy_row_outputs(void *ctx, uint32_t row, uint32_t thread) {
    const struct beside *k = ctx;
    const struct experts *e = k->be->experts;
    size_t n = k->op->w[2]->ne[1], used = k->op->n_used;
    size_t first = row * k->be->shape.n_expert_used;

    for (size_t i = 0; i < used; i++)
        if (e->pick[first + i].expert != NO_EXPERT)
            memcpy(k->y + (row * used + i) * n, e->out + e->place[first + i] * n,
                   n * sizeof(float));
}

void experts_beside(struct step *s, const struct model_op *op, const float *x,
                    const uint32_t *expert, const float *weight, float *y) {
    struct beside k = {s->be, op, op->weights, x, expert, weight, y};

    be_each(s->be, s->n_rows, cpu_experts_begin_row, &k);
    compute_pairs(s, op);
    be_each(s->be, s->n_rows, copy_row_outputs, &k);
}

/* Adds the output of the shared expert, times sigmoid(w[3] y), to x of a row, or to b with
 * op->branch. */
static void add_shared_row(void *ctx, uint32_t row, uint32_t thread) {
    const struct work *k = ctx;
    const struct be *b = k->step->be;
    const struct experts *e = b->experts;
    uint32_t n = b->shape.n_embd;

    b->kernels->add_scaled(b->act[op_sum(k->op)] + (size_t)row * n, e->out + (size_t)row * n,
                           mx_sigmoid(e->weight[row]), n);
}

/* Uses the normed rows that ops_route() left in experts.normed. */
int ops_shared(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    struct experts *e = b->experts;
    uint32_t n_in = b->shape.n_embd, n_ff = b->shape.n_ff_shared;
    struct work k = {.step = s, .op = op, .w = w};

    assert(e && w->n_mats == 4);
    struct matmul both[2] = {ops_prepare_rows(s, w, 0, 2, e->normed, n_in),
                             ops_prepare_rows(s, w, 3, 1, e->normed, n_in)};
    both[0].mode = MATMUL_GLU;
    both[0].glu = op->ffn.glu;
    both[0].out[0] = e->common;
    both[0].out_stride[0] = n_ff;
    both[1].mode = MATMUL_STORE;
    both[1].out[0] = e->weight;
    both[1].out_stride[0] = 1;
    matmul_run(b->pool, both, 2);
    ops_store(s, ops_prepare_rows(s, w, 2, 1, e->common, n_ff), e->out, n_in);
    be_each(b, s->n_rows, add_shared_row, &k);
    return 0;
}

/* -- memory ------------------------------------------------------------------------------------ */

/* Returns the largest number of tiles of a step. The last tile of each group may have one row
 * only. */
static uint32_t max_tiles(const struct be *b) {
    return b->experts->max_pairs / TILE_MAX + MIN(b->shape.n_expert, b->experts->max_pairs);
}

int experts_grow(struct be *b, enum acts_kind kind, uint32_t n_in) {
    struct experts *e = b->experts;

    assert(e && kind < ACTS_KINDS);
    return be_grow(b, &e->acts[kind], &e->acts_size[kind],
                   max_tiles(b) * acts_bytes(kind, n_in, TILE_MAX));
}

int experts_open(struct be *b) {
    const struct model_shape *m = &b->shape;

    if (!m->n_expert)
        return 0;
    struct experts *e = b->experts = be_alloc(b, 1, sizeof(*e));
    if (!e)
        return -ENOMEM;
    e->max_pairs = b->max_rows * m->n_expert_used;
    e->normed = be_rows(b, m->n_embd);
    e->router = be_rows(b, m->n_expert);
    e->hidden = be_map(b, (size_t)e->max_pairs * m->n_ff_expert * sizeof(float));
    e->out = be_map(b, (size_t)e->max_pairs * m->n_embd * sizeof(float));
    e->common = be_rows(b, m->n_ff_shared);
    e->weight = be_rows(b, 1);
    e->pick = be_alloc(b, e->max_pairs, sizeof(*e->pick));
    e->place = be_alloc(b, e->max_pairs, sizeof(*e->place));
    e->source = be_alloc(b, e->max_pairs, sizeof(*e->source));
    e->in = be_alloc(b, e->max_pairs, sizeof(*e->in));
    e->group = be_alloc(b, m->n_expert, sizeof(*e->group));
    e->mm = be_alloc(b, m->n_expert, sizeof(*e->mm));
    if (b->counts_picks)
        e->picks = be_alloc(b, (size_t)m->n_layer * m->n_expert, sizeof(*e->picks));
    if (b->no_memory)
        return -ENOMEM;
    return 0;
}
