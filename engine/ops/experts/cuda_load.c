/*
 * cuda_load - what the CUDA backend lacks of mixtures of experts, their buffers, and how their
 * weights are loaded.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/experts.h"

static const char *picks_lack(const struct model_shape *s) {
    static_assert(MODEL_EXPERTS_MAX <= ROUTE_EXPERTS && EXPERT_GROUPS_MAX <= ROUTE_GROUPS &&
                      ROUTE_PICKS == 32,
                  "as the texts say");
    if (s->n_expert_used > ROUTE_PICKS)
        return "more than 32 experts for a token";
    return NULL;
}

static const char *route_lacks(const struct model_shape *s, const struct model_op *op) {
    const char *what = picks_lack(s);

    if (!what && !op->norm && !s->stream.n)
        what = "experts without a norm before them";
    return what;
}

/* Names what FFNs of picked and of shared experts lack. */
static const char *expert_ffn_lacks(const struct model_shape *s, const struct model_op *op) {
    const char *what = picks_lack(s);

    if (!what && load_has_relu_gates(op))
        what = "experts with rectified gates";
    return what;
}

static const char *shared_lacks(const struct model_shape *s, const struct model_op *op) {
    const char *what = expert_ffn_lacks(s, op);

    if (!what && s->layer_norm) /* combine() computes the gate behind an RMS norm */
        what = "shared experts with gates behind layer norms";
    return what;
}

static const char *experts_lacks(const struct model_shape *s, const struct model_op *op) {
    const char *what = picks_lack(s);

    if (!what && op->post_norm && !op->branch)
        what = "experts with a norm behind them";
    if (!what && !op->w[1] && !op->ffn.joined)
        what = "experts whose gates have no up values";
    if (!what && op->norm && s->layer_norm)
        what = "experts with layer norms of their own";
    if (what)
        return what;
    return expert_ffn_lacks(s, op);
}

/* Counts the buffers of exchange with the host. */
static void load_count_exchange(struct be *b) {
    const struct model_shape *s = b->shape;
    size_t rows = b->opts->max_rows, pairs = rows * MAX(s->n_expert_used, 1u);

    if (!has_host(b))
        return;
    memory_add(b, &b->experts.host_rows, 1, sizeof(uint32_t), "experts of the host", true);
    memory_add(b, &b->experts.host_x, rows * experts_width(s), sizeof(float), "experts of the host",
               true);
    memory_add(b, &b->experts.host_expert, pairs, sizeof(uint32_t), "experts of the host", true);
    memory_add(b, &b->experts.host_weight, pairs, sizeof(float), "experts of the host", true);
    memory_add(b, &b->experts.host_y, pairs * experts_width(s), sizeof(float),
               "experts of the host", true);
}

static void memory_experts(struct be *b) {
    const struct model_shape *s = b->shape;
    size_t rows = b->opts->max_rows, pairs = rows * s->n_expert_used;

    if (s->n_expert == 0)
        return;
    memory_add_words(b, &b->experts.logits, rows * s->n_expert);
    memory_add_words(b, &b->experts.weight, pairs);
    memory_add_words(b, &b->experts.gate, pairs * s->n_ff_expert);
    memory_add_words(b, &b->experts.up, pairs * s->n_ff_expert);
    memory_add_words(b, &b->experts.latent, rows * s->n_latent);
    memory_add_words(b, &b->experts.y, pairs * experts_width(s));
    memory_add_words(b, &b->experts.shared, s->n_ff_shared ? rows * s->n_embd : 0);
    memory_add_words(b, &b->experts.expert, pairs);
    memory_add_words(b, &b->experts.list, rows * s->n_expert);
    memory_add_words(b, &b->experts.count, s->n_expert + 2);
    memory_add(b, &b->experts.item, experts_items(b), sizeof(struct expert_item), "activations",
               false);
    if (b->opts->experts_fd > 0) {
        memory_add(b, &b->experts.picks, cuda_n_picks(b), sizeof(uint64_t), "activations", false);
        memory_add(b, &b->experts.host_picks, cuda_n_picks(b), sizeof(uint64_t), "experts", true);
    }
    if (s->host_experts)
        memory_add_words(b, &b->experts.slot, (size_t)s->n_layer * s->n_expert);
    if (s->fetches) {
        size_t n = (size_t)s->n_layer * (s->n_expert + 1);

        memory_add_words(b, &b->experts.slot_expert, n);
        memory_add_words(b, &b->experts.slot_since, n);
        memory_add(b, &b->experts.move, s->n_expert, sizeof(*b->experts.move), "activations",
                   false);
        memory_add_words(b, &b->experts.n_moves, 1);
    }
    load_count_exchange(b);
}

/* Counts for FFNs on the host, each of which is one expert, in models without experts. */
static void memory_host(struct be *b) {
    if (b->shape->n_expert == 0)
        load_count_exchange(b);
}

/* Initialises the results of the host, so that later kernels read valid numbers even if hand_over()
 * does nothing; a dense FFN is expert 0. */
static int clear_host(struct be *b) {
    size_t pairs = (size_t)b->opts->max_rows * MAX(b->shape->n_expert_used, 1u);

    if (!has_host(b))
        return 0;
    *b->experts.host_rows = 0;
    memset(b->experts.host_expert, 0, pairs * sizeof(uint32_t));
    memset(b->experts.host_weight, 0, pairs * sizeof(float));
    memset(b->experts.host_y, 0, pairs * experts_width(b->shape) * sizeof(float));
    return 0;
}

/* Initialises counts, item lists and experts with valid values, so that later kernels access valid
 * memory even if route() does nothing. */
static int clear_experts(struct be *b) {
    const struct model_shape *s = b->shape;
    size_t pairs = (size_t)b->opts->max_rows * s->n_expert_used;

    TRY(clear_host(b));
    if (!b->experts.count) /* no layer has experts */
        return 0;
    TRY(cuda_clear_picks(b));
    if (s->fetches) /* valid even if bring() does nothing; slots begin without a time */
        TRY(cuda_fill(b, b->experts.n_moves, 0, sizeof(uint32_t)));
    if (s->fetches)
        TRY(cuda_fill(b, b->experts.slot_since, 0,
                      (size_t)s->n_layer * (s->n_expert + 1) * sizeof(uint32_t)));
    b->experts.n_items = b->experts.count + s->n_expert + 1;
    TRY(cuda_fill(b, b->experts.count, 0, (s->n_expert + 2) * sizeof(uint32_t)));
    return cuda_fill(b, b->experts.expert, 0, pairs * sizeof(uint32_t));
}

const struct op_family experts_family = {
    .scratch = memory_experts, .clear = clear_experts, .check = experts_check};
const struct op_family experts_host_family = {.scratch = memory_host, .clear = clear_host};

/* Returns matrix @i of all experts that the device has or fetches; of each only the rank's rows. */
static struct parts expert_rows(const struct be *b, const struct model_op *op, int i) {
    uint32_t n_out = (uint32_t)op->w[i]->ne[1], first = rank_cut(n_out, b->group.rank, b->group.n);
    uint32_t n = rank_cut(n_out, b->group.rank + 1, b->group.n) - first;

    if (b->group.n > 1)
        return (struct parts){b->shape->n_expert, n, n_out, first, 0};
    if (!n_host_experts(b->shape, op->layer))
        return load_all_rows(op->w[i]);
    if (b->shape->fetches) {
        struct parts p = load_all_rows(op->w[i]);

        p.layer = 1 + op->layer;
        return p;
    }
    return (struct parts){b->shape->n_expert, n_out, n_out, 0, 1 + op->layer};
}

/* Returns the gates (@half 0) or the ups of all experts, if the tensor has both for each expert; of
 * each only the rank's rows. */
static struct parts half_of_experts(const struct be *b, const struct model_op *op, uint32_t half) {
    uint32_t n = (uint32_t)op->w[0]->ne[1] / 2, first = rank_cut(n, b->group.rank, b->group.n);
    uint32_t own = rank_cut(n, b->group.rank + 1, b->group.n) - first;

    return (struct parts){(uint32_t)op->w[0]->ne[2], own, 2 * n, half * n + first, 1 + op->layer};
}

/* Loads a shared expert. Its down projection has rows of another size, and its gate is a vector. */
static int load_shared(struct be *b, struct weights *w, const struct model_op *op,
                       struct err *err) {
    struct weights *down = load_weights_new(b);

    if (!down)
        return -ENOMEM;
    w->down = down;
    TRY(load_matrix(b, w, op->w[0], NULL, b->act.gate, err));
    TRY(load_matrix(b, w, op->w[1], NULL, b->act.up, err));
    TRY(load_matrix(b, down, op->w[2], NULL, b->experts.shared, err));
    return load_decoded(b, &op->w[3], 1, &w->gate, err);
}

/* Loads gates and ups that are one tensor as two matrices. */
static int load_joined(struct be *b, struct weights *w, const struct model_op *op,
                       struct err *err) {
    const struct parts gate = half_of_experts(b, op, 0), up = half_of_experts(b, op, 1);
    const struct parts down = expert_rows(b, op, 2);

    TRY(load_parts(b, w, op->w[0], &gate, NULL, b->experts.gate, err));
    TRY(load_parts(b, w, op->w[0], &up, NULL, b->experts.up, err));
    return load_parts(b, w, op->w[2], &down, op->bias[2], b->experts.y, err);
}

/* Loads the device's experts, and hands the host's to its backend. */
static int load_experts(struct be *b, struct weights *w, const struct model_op *op,
                        struct err *err) {
    uint32_t n_host = n_host_experts(b->shape, op->layer);

    if (n_host && !cuda_counts(b) && b->shape->fetches)
        TRY(experts_load_slots(b, op->layer));
    else if (n_host && !cuda_counts(b))
        TRY(experts_load_host(b, w, op, err));
    if (n_host == b->shape->n_expert && !b->shape->fetches)
        return 0;
    if (op->ffn.joined)
        return load_joined(b, w, op, err);
    for (int i = 0; i < OP_MATRICES; i++) /* as load_matrices() */
        if (op->w[i] && (i == 0 || op->w[i] != op->w[i - 1])) {
            const struct parts p = expert_rows(b, op, i);

            TRY(load_parts(b, w, op->w[i], &p, op->bias[i], load_place(b, op, i), err));
        }
    return 0;
}

static int load_route(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    if (op->picks)
        TRY(load_table(b, op->picks, &w->raw, err));
    return load_matrices(b, w, op, err);
}

/* -- rows of the table of ops (engine/cuda/ops.c) ---------------------------------------------- */

const struct op_code cuda_op_route = {
    .run = step_route,
    .lacks = route_lacks,
    .load = load_route,
    .out = {BE_AT(experts.logits), BE_AT(experts.latent)},
    .adds = CUDA_ADDITIONS,
    .family = &experts_family,
    .division = {CUT_LOADER},
};

const struct op_code cuda_op_experts = {
    .run = step_experts,
    .lacks = experts_lacks,
    .load = load_experts,
    .out = {BE_AT(experts.gate), BE_AT(experts.up), BE_AT(experts.y)},
    .takes = OP_BIT(OP_ROUTE),
    .family = &experts_family,
    .division = {CUT_LOADER, .lacks = experts_divided_lacks,
                 .part = {experts_own_gates, experts_own_sum}, .adds = true},
};

const struct op_code cuda_op_shared = {
    .run = step_shared,
    .lacks = shared_lacks,
    .load = load_shared,
    .takes = OP_BIT(OP_EXPERTS),
    .family = &experts_family,
    .division = {CUT_ROWS, .cuts = shared_cuts, .part = {shared_own_gates, shared_own_sum},
                 .adds = true},
};
