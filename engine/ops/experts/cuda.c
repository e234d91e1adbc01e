/*
 * experts - the ops of a mixture of experts: launches the kernels of experts.cu. The host knows
 * only the number of rows; route() decides on the device which experts they pick. The device has
 * all, some or none of a layer's experts. The host computes the pairs of the others in parallel, or
 * (shape.fetches) the device reads them from host memory and caches those picked last in slots;
 * results do not depend on where the weights are.
 */

#include "engine/cuda/cuda.h"

#include <assert.h>

#include "base/try.h"
#include "engine/experts.h"

bool experts_few(const struct be *b, uint64_t n_pairs, uint32_t n_experts) {
    bool few = n_pairs <= (uint64_t)FEW_PAIRS * n_experts;

    assert(b->experts.vec == WAY_ON || b->experts.wide == WAY_ON);
    return b->experts.wide != WAY_ON || (few && b->experts.vec == WAY_ON);
}

static bool cuda_experts_is_few(const struct step *s, const struct model_op *op) {
    const struct model_shape *m = s->be->shape;

    return experts_few(s->be, (uint64_t)s->grid.rows * op->n_used, m->n_expert);
}

/* Returns the most items of @pairs pairs of a row and an expert, with @columns pairs for each
 * item. */
static uint32_t most_items(const struct model_shape *m, uint32_t pairs, uint32_t columns) {
    return MIN(pairs, m->n_expert + pairs / columns);
}

uint32_t experts_items(const struct be *b) {
    return most_items(b->shape, b->opts->max_rows * b->shape->n_expert_used, EXPERT_ROWS);
}

/* Returns the device's numbers of a layer's experts, NULL if it has all. The drafting
 * block counts as the layer after the last one. */
static const uint32_t *cuda_experts_slots(const struct be *b, uint32_t layer) {
    return n_host_experts(b->shape, layer) && !b->shape->fetches
               ? b->experts.slot + (size_t)layer * b->shape->n_expert
               : NULL;
}

/* Returns the slots of a layer; none if the device has all of its experts. */
static struct expert_slots slots_to_fetch(const struct be *b, uint32_t layer) {
    uint32_t n = b->shape->n_expert;
    size_t at = (size_t)layer * (n + 1);

    if (!fetches_in(b, layer))
        return (struct expert_slots){0};
    return (struct expert_slots){
        .slot = b->experts.slot + (size_t)layer * n,
        .expert = b->experts.slot_expert + at,
        .since = b->experts.slot_since + at,
        .n = n - n_host_experts(b->shape, layer),
        .move = b->experts.move,
        .n_moves = b->experts.n_moves,
        .n_missed = b->experts.picks ? b->experts.picks + (size_t)b->shape->n_layer * n : NULL,
    };
}

/* Returns the counters of a layer's picks; NULL: they are not counted. */
static uint64_t *picks_of(const struct be *b, uint32_t layer) {
    return b->experts.picks && layer < b->shape->n_layer
               ? b->experts.picks + (size_t)layer * b->shape->n_expert
               : NULL;
}

struct route_args experts_route_args(const struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    const struct be *b = s->be;
    const struct model_shape *m = b->shape;

    return (struct route_args){
        .batch = b->head,
        .logits = b->experts.logits,
        .bias = w->pick_bias,
        .n_expert = m->n_expert,
        .n_used = op->n_used,
        .columns = cuda_experts_is_few(s, op) ? EXPERT_ROWS : MATMUL_COLUMNS,
        .gating = m->gating,
        .table = (const int32_t *)w->raw.data,
        .sampled = b->sampling.sampled,
        .n_tokens = w->raw.n_rows,
        .normalize = !m->unnormed,
        .n_group = m->n_expert_group,
        .n_group_used = m->n_group_used,
        .in_scale = op->scale,
        .scale = m->expert_scale,
        .slot = cuda_experts_slots(b, op->layer),
        .picks = picks_of(b, op->layer),
        .expert = b->experts.expert,
        .weight = b->experts.weight,
        .list = b->experts.list,
        .stride = b->opts->max_rows,
        .count = b->experts.count,
        .item = b->experts.item,
        .n_items = b->experts.n_items,
        .slots = slots_to_fetch(b, op->layer),
    };
}

int step_route(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    const struct route_args a = experts_route_args(s, op);
    struct operand x = step_rows(s);

    x.cores = false; /* the experts need the same rows in the other layout */
    TRY(step_norm(s, op));
    assert(w->n_mats == (op->w[1] ? 2 : 1) && w->m[0].n_out == a.n_expert);
    TRY(cuda_matmul(b, w, &x, false));
    return CUDA_LAUNCH(b, route, (s->grid.rows + ROUTE_ROWS - 1) / ROUTE_ROWS, 1, CUDA_THREADS, &a);
}

/* Warps that keep a multiprocessor busy loading weights; if there are fewer, teams share row
 * tiles. */
#define BUSY_WARPS 12u

/* Returns the number of teams of a block: teams are as small as possible without leaving a
 * multiprocessor idle, since the work per row tile is then done by fewer warps. @most: most
 * items. */
static uint32_t choose_teams(const struct be *b, const struct expert_args *a, uint32_t most) {
    uint64_t tiles = (uint64_t)MIN(most, a->n_experts) * a->m[0].n_row_tiles;
    uint32_t busy = BUSY_WARPS * (uint32_t)b->about.device.n_multiprocessors,
             n = EXPERT_THREADS / 32;

    while (n > 1 && tiles * (EXPERT_THREADS / 32 / n) < busy &&
           EXPERT_THREADS / 16 / n <= a->m[0].n_units)
        n /= 2;
    assert(n == 1 || n == 2 || n == 4); /* expert_args.n_teams */
    return n;
}

/* Static shared memory of expert_vec, and what the driver reserves for each block. */
#define EXPERT_STATIC 11264u

/* Returns how many of @n blocks of expert_vec with @shared bytes of shared memory run at a time. */
static uint32_t resident_blocks(const struct be *b, uint32_t n, uint32_t shared) {
    uint32_t most = 4; /* by its registers */

    while (most > 1 && b->about.device.shared_bytes < most * (shared + EXPERT_STATIC))
        most--;
    return MIN(n, most * (uint32_t)b->about.device.n_multiprocessors);
}

int experts_product(struct be *b, struct expert_args *a, bool few, uint32_t most) {
    /* of the rows of all items: expert_vec has their offsets in 32 bits */
    uint64_t packed_bytes = (uint64_t)most * EXPERT_ROWS * a->n_blocks * 32 * b->products.planes;
    uint32_t groups = 0, shared = 0;

    assert(a->n_mats > 0 && a->n_mats <= ARRAY_SIZE(a->m) && most > 0);
    assert(!few || a->n_mats == 1 || a->m[0].n_row_tiles == a->m[1].n_row_tiles);
    assert(!few || packed_bytes <= UINT32_MAX);
    assert(!a->settled || !a->slot); /* route() and bring() change slots */
    for (uint32_t i = 0; i < a->n_mats; i++) {
        groups += (a->m[i].n_row_tiles + 7) / 8;
        shared = MAX(shared, wide_shared(a->m[i].format));
    }
    struct launch l = {kernel_expert_wide, most, groups, CUDA_THREADS, "expert_wide", shared};
    if (few) {
        expert_cut_rows(a, choose_teams(b, a, most));
        shared = expert_shared(a->stage_bytes);
        uint32_t blocks = (a->m[0].n_row_tiles + a->n_teams - 1) / a->n_teams;
        l = (struct launch){.kernel = kernel_expert_vec,
                            .grid_x = resident_blocks(b, most * blocks, shared),
                            .grid_y = 1,
                            .n_threads = EXPERT_THREADS,
                            .what = "expert_vec",
                            .shared = shared};
    }
    return cuda_launch(b, &l, a, sizeof(*a));
}

/* Matrices @first .. of the op, whose rows of x have @n_in values. */
static struct expert_args product_args(const struct be *b, const struct model_op *op,
                                       uint32_t first, uint32_t n_mats, uint32_t n_in) {
    const struct weights *w = op->weights;
    struct expert_args a = {
        .x = b->act.packed,
        .scale = b->act.scale,
        .n_mats = n_mats,
        .n_blocks = (uint32_t)round_up(n_in, 64) / 16,
        .n_used = op->n_used,
        .n_experts = w->n_experts,
        .by_pair = first > 0,
        .item = b->experts.item,
        .n_items = b->experts.n_items,
        .list = b->experts.list,
        .stride = b->opts->max_rows,
        .slot = slots_to_fetch(b, op->layer).slot,
    };

    assert(first + n_mats <= w->n_mats && w->n_experts > 0);
    for (uint32_t i = 0; i < n_mats; i++) {
        a.m[i] = w->m[first + i];
        a.host[i] = w->host[first + i];
    }
    return a;
}

size_t cuda_n_picks(const struct be *b) {
    return (size_t)b->shape->n_layer * b->shape->n_expert + 1;
}

int cuda_clear_picks(struct be *b) {
    size_t n = cuda_n_picks(b) * sizeof(uint64_t);

    return b->experts.picks ? cuda_fill(b, b->experts.picks, 0, n) : 0;
}

int experts_send_picks(struct step *s) {
    struct be *b = s->be;
    size_t n = cuda_n_picks(b) * sizeof(uint64_t);

    if (!b->experts.picks || s->batch->step % PICKS_STEPS)
        return 0;
    b->experts.counted = s->batch->step;
    return cuda_copy(b, b->experts.host_picks, b->experts.picks, n, CUDA_TO_HOST);
}

/* Uploads the numbers that a layer's experts have on the device, in the order of the experts, and
 * sets @expert to the experts that have one. */
static int load_numbers(struct be *b, uint32_t layer, uint32_t expert[MODEL_EXPERTS_MAX]) {
    uint32_t n = 0, slot[MODEL_EXPERTS_MAX];

    assert(b->shape->n_expert <= MODEL_EXPERTS_MAX);
    for (uint32_t e = 0; e < b->shape->n_expert; e++) {
        slot[e] = expert_is_hosts(b->shape, layer, e) ? SLOT_HOST : n;
        if (slot[e] != SLOT_HOST)
            expert[n++] = e;
    }
    assert(n + n_host_experts(b->shape, layer) == b->shape->n_expert);
    return cuda_load_bytes(b, slot, b->shape->n_expert * sizeof(*slot),
                           b->experts.slot + (size_t)layer * b->shape->n_expert);
}

int experts_load_host(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    uint32_t expert[MODEL_EXPERTS_MAX];

    assert(b->experts.host);
    TRY(load_numbers(b, op->layer, expert));
    w->be = b;
    w->host_layer = b->experts.n_host++;
    const struct model_op *normed = op->norm ? op : op->links.from;
    return b->experts.host_ops->load(b->experts.host, op, normed, err);
}

int experts_load_slots(struct be *b, uint32_t layer) {
    uint32_t expert[MODEL_EXPERTS_MAX];
    const struct expert_slots s = slots_to_fetch(b, layer);

    TRY(load_numbers(b, layer, expert));
    return cuda_load_bytes(b, expert, s.n * sizeof(*expert), s.expert);
}

/* Enqueues the copies of the experts that route() has chosen slots for. */
static int cuda_experts_bring(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    const struct expert_slots slots = slots_to_fetch(b, op->layer);
    struct bring_args a = {.n_moves = slots.n_moves};

    a.move = (const uint32_t(*)[2])slots.move;
    for (uint32_t i = 0; i < w->n_mats; i++) {
        a.host[i] = w->host[i];
        a.here[i] = (uint8_t *)w->m[i].tiles;
        a.bytes[i] = w->m[i].n_row_tiles * w->m[i].bytes[TILE_SEGMENTS];
    }
    return CUDA_LAUNCH(b, bring, 2 * (uint32_t)b->about.device.n_multiprocessors, 1, CUDA_THREADS,
                       &a);
}

/* Computes the host's pairs on a thread of the runtime, after hand_over(), which writes its input,
 * and before combine(), which reads its output. */
static void cuda_experts_on_host(void *ctx) {
    const struct weights *w = ctx;
    const struct be *b = w->be;

    assert(*b->experts.host_rows <= b->opts->max_rows && w->host_layer < b->experts.n_host);
    b->experts.host_ops->run(b->experts.host, w->host_layer, *b->experts.host_rows,
                             b->experts.host_x, b->experts.host_expert, b->experts.host_weight,
                             b->experts.host_y);
}

/* Enqueues the host's part: rows and picks go down, and combine() reads the results where they lie.
 * The host learns with them which experts and how many rows there are, so such steps are graphs
 * too. */
static int products_on_host(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    const struct hand_over_args a = {
        .batch = b->head,
        .x = m->n_latent ? b->experts.latent : b->act.x,
        .expert = b->experts.expert,
        .weight = b->experts.weight,
        .n = experts_width(m),
        .n_used = op->n_used,
        .host_x = b->experts.host_x,
        .host_weight = b->experts.host_weight,
        .host_expert = b->experts.host_expert,
        .host_rows = b->experts.host_rows,
    };

    TRY(CUDA_LAUNCH(b, hand_over, s->grid.rows, 1, PACK_THREADS, &a));
    return cuda_call(b, cuda_experts_on_host, op->weights);
}

int ffn_load_host(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    const struct model_op *down = op->links.into;
    const struct model_op ffn = {.kind = OP_EXPERTS,
                                 .layer = op->layer,
                                 .n_used = 1,
                                 .ffn.glu = op->ffn.glu,
                                 .w = {op->w[0], op->w[1], down->w[0]},
                                 .bias = {op->bias[0], op->bias[1], down->bias[0]}};

    assert(b->experts.host && down && down->kind == OP_PROJ && down->in == ACT_H);
    w->be = b;
    w->host_layer = b->experts.n_host++;
    return b->experts.host_ops->load(b->experts.host, &ffn, op, err);
}

int ffn_on_host(struct step *s, const struct model_op *op) {
    TRY(step_complete(s, op));
    assert(op->n_used == 0); /* there are no picks to be handed over */
    return products_on_host(s, op);
}

/* Returns the most items of a step. */
static uint32_t cuda_experts_items(const struct step *s, const struct model_op *op) {
    return most_items(s->be->shape, s->grid.rows * op->n_used,
                      cuda_experts_is_few(s, op) ? EXPERT_ROWS : MATMUL_COLUMNS);
}

/* Packs the input of the experts in the layout that their kernels take, unless it is the rows that
 * ROUTE has packed. */
static int experts_pack_in(struct step *s, const struct model_op *op) {
    const float *norm = op->weights->norm;
    struct be *b = s->be;
    struct pack_args a = step_pack_args(b, PACK_NORM, b->act.x, norm, b->shape->n_embd);

    if (op->ffn.latent)
        a = step_pack_args(b, PACK_PLAIN, b->experts.latent, NULL, b->shape->n_latent);
    else if (!norm)
        return 0;
    a.cores = false;
    return step_launch_pack(b, s->grid.rows, &a);
}

/* Computes gates and ups of all items; with few rows the product also multiplies them. */
int experts_gates(struct step *s, const struct model_op *op, enum pack_kind *kind) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    uint32_t n_in = w->n_mats - 1; /* a gate and an up, or an up alone */
    struct expert_args in = product_args(b, op, 0, n_in, experts_width(b->shape));

    assert(w->n_mats == (op->ffn.glu == GLU_RELU ? 2 : 3));
    in.glu = step_glu(op);
    in.weight = op->ffn.early ? b->experts.weight : NULL;
    bool few = cuda_experts_is_few(s, op);
    *kind = few && n_in == 2 ? PACK_PLAIN : step_glu(op);
    TRY(experts_pack_in(s, op));
    return experts_product(b, &in, few, cuda_experts_items(s, op));
}

int experts_downs(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    struct expert_args out = product_args(b, op, w->n_mats - 1, 1, (uint32_t)op->w[2]->ne[0]);

    return experts_product(b, &out, cuda_experts_is_few(s, op), cuda_experts_items(s, op));
}

/* Computes y of the device's pairs: gates and ups of all items, glu, downs. */
static int products_on_device(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_ff = (uint32_t)op->w[2]->ne[0];
    enum pack_kind kind;
    TRY(experts_gates(s, op, &kind));
    struct pack_args pack = step_pack_args(b, kind, b->experts.gate, NULL, n_ff);

    pack.up = b->experts.up;
    pack.each = op->n_used;
    pack.cores = false;
    TRY(step_launch_pack(b, s->grid.rows * op->n_used, &pack));
    return experts_downs(s, op);
}

/* Adds the sum of the experts, and the result of the shared expert, to the branch. */
static int add_to_branch(struct step *s, const struct model_op *op) {
    TRY(experts_combine(s, op, s->be->act.o, NULL));
    return residual_branch(s, op);
}

/* Computes the experts' sum in the latent space, and packs it for the PROJ that follows. */
static int sum_in_latent_space(struct step *s, const struct model_op *op) {
    float *d = s->be->experts.latent;
    const struct pack_args pack =
        step_pack_args(s->be, PACK_PLAIN, d, NULL, s->be->shape->n_latent);

    assert(op[1].kind == OP_PROJ && op[1].in == ACT_D);
    return experts_combine(s, op, d, &pack);
}

/* Computes the products of the experts. The host gets its rows before the device begins with its
 * own, and computes until the sum needs its results. */
static int experts_multiply(struct step *s, const struct model_op *op) {
    const struct model_shape *m = s->be->shape;
    uint32_t n_host = m->fetches ? 0 : n_host_experts(m, op->layer);

    if (n_host > 0)
        TRY(products_on_host(s, op));
    else if (fetches_in(s->be, op->layer))
        TRY(cuda_experts_bring(s, op));
    return n_host < m->n_expert ? products_on_device(s, op) : 0;
}

/* The sum is left to SHARED, or to the next op, whose norm it also computes. */
int step_experts(struct step *s, const struct model_op *op) {
    TRY(experts_multiply(s, op));
    if (op->ffn.latent)
        return sum_in_latent_space(s, op);
    if (op->links.into)
        return 0;
    if (op->branch)
        return add_to_branch(s, op);
    return step_finish(s, op);
}

/* Computes the shared expert, from x before the other experts are added, whose sum comes after it,
 * also if it goes to a branch. */
int step_shared(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    const struct model_op *experts = op->links.from;
    struct be *b = s->be;

    assert(experts && w->n_mats == 2 && w->down);
    const float *norm = experts->links.from->weights->norm;
    enum pack_kind glu = step_glu(op);
    TRY(step_pack(s, norm ? PACK_NORM : PACK_PLAIN, b->act.x, norm, b->shape->n_embd));
    TRY(step_gate_and_up(s, w, glu));
    TRY(step_pack(s, step_glu_left(s, w, glu), b->act.gate, NULL, w->down->n_in));
    TRY(step_multiply(s, w->down, false));
    assert(!op->branch || !experts->post_norm); /* it would include the shared expert */
    if (op->branch)
        return add_to_branch(s, experts);
    return op->links.into ? 0 : experts_combine(s, experts, b->act.x, NULL);
}

int experts_combine(struct step *s, const struct model_op *op, float *to,
                    const struct pack_args *pack) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    const struct model_op *into = op->links.into;
    const struct weights *shared = NULL;
    uint32_t width = experts_width(m), first = rank_cut(width, b->group.rank, b->group.n);

    assert(op->kind == OP_EXPERTS && op->links.from);
    if (into && into->kind == OP_SHARED)
        shared = step_weights(b, into);
    struct combine_args a = {
        .batch = b->head,
        .x = b->act.x,
        .to = to,
        .y = b->experts.y,
        .host_y = b->experts.host_y,
        .slot = cuda_experts_slots(b, op->layer),
        .weight = op->ffn.early ? NULL : b->experts.weight,
        .weigh = op->weights->weigh,
        .expert = b->experts.expert,
        .shared = shared ? b->experts.shared : NULL,
        .gate = shared ? shared->gate : NULL,
        .norm = step_weights(b, op->links.from)->norm,
        .eps = m->rms_eps,
        .n_x = width,
        .first = first,
        .n = rank_cut(width, b->group.rank + 1, b->group.n) - first,
        .n_used = op->n_used,
        .adds = !op->branch && !op->ffn.latent,
        .packs = pack != NULL,
    };

    if (pack)
        a.pack = *pack;
    TRY(!m->fetches && n_host_experts(m, op->layer) > 0 ? cuda_join(b) : 0);
    return CUDA_LAUNCH(b, combine, s->grid.rows, 1, PACK_THREADS, &a);
}
