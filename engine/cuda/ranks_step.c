/* ranks_step - the ops of a step on several devices (ranks.c): each does its part of an op as one
 * device would, and then what it has made comes together. */

#include "engine/cuda/ranks.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* Each rank's part of @op by @run, the first one's last. */
static int each(struct step *s, const struct model_op *op,
                int (*run)(struct step *s, const struct model_op *op)) {
    struct ranks *k = s->be->ranks;
    int r = 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        const struct model_op part = ranks_part_of(k, op, i);

        r = ranks_use(k, i);
        if (r == 0 && run(ranks_step_of(s, i), &part) < 0)
            r = ranks_lose(k, k->be[i]);
    }
    return r;
}

/* All of the step as one launch on the first device. */
static int launch_graph(struct ranks *k, struct step *s) {
    struct be *b = s->be;
    int r = ranks_meet_now(k, &to_first);

    if (r == 0 && graph_launch(s) < 0)
        r = ranks_lose(k, b);
    r = r < 0 ? r : ranks_meet_now(k, &from_first);
    if (r == 0 && cuda_check(b, b->api->use(b->number), "cudaSetDevice") < 0)
        r = ranks_lose(k, b);
    return r;
}

static int begin_ranks(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct ranks *k = b->ranks;
    int r = 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        r = ranks_use(k, i);
        if (r == 0 && step_upload(k->be[i], batch, out) < 0)
            r = ranks_lose(k, k->be[i]);
    }
    if (r < 0 || batch->n_rows == 0)
        return r;
    bool graph = graph_begin(*out);
    for (uint32_t i = 1; i < k->n; i++)
        graph_follow(ranks_step_of(*out, i), *out);
    if (graph)
        return launch_graph(k, *out);
    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        k->be[i]->met = true; /* uploads, or the beginning of a capture */
        r = ranks_use(k, i);
        if (r == 0 && step_start(ranks_step_of(*out, i)) < 0)
            r = ranks_lose(k, k->be[i]);
    }
    return r;
}

/* Each rank's columns of the first one's x to where its products are added; by copies all of it
 * goes to all. */
static int embed_ranks(struct step *s, const struct model_op *op) {
    struct ranks *k = s->be->ranks;
    uint32_t n = s->be->shape->n_embd, n_rows = s->grid.rows;
    const struct model_op part = ranks_part_of(k, op, 0);
    int r = step_embed(s, &part) < 0 ? ranks_lose(k, s->be) : ranks_meet_in_step(k, &from_first);

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct be *b = k->be[i], *at = k->direct ? s->be : b;
        uint32_t first = ranks_cut(k, n, i), n_own = ranks_cut(k, n, i + 1) - first;
        const struct columns x = {s->be->x, 0, 0, n, n};
        const struct columns own = {at->x + first, at->rank, 0, n_own, n};

        r = i == 0 || k->direct ? 0 : ranks_take(k, i, b->x, n, &x, 1, NULL, n_rows);
        r = r < 0 ? r : ranks_take(k, i, b->own_x, n_own, &own, 1, &b->head->n_rows, n_rows);
    }
    return r < 0 || !k->direct ? r : ranks_meet_in_step(k, &all_meet);
}

static int qkv_ranks(struct step *s, const struct model_op *op) {
    return each(s, op, step_qkv);
}

static int attend_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, step_attend);

    return r < 0 ? r : ranks_exchange(s, GATHER_O, op->heads.n * op->heads.dim);
}

static int proj(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    enum gathered in = op->in == ACT_H ? GATHER_H : GATHER_O;

    assert(!s->packed && !s->held && !s->due);
    int r = step_pack(s, PACK_PLAIN, ranks_whole_of(b, in), NULL, op->weights->n_in);

    return r < 0 ? r : step_multiply(s, op->weights, true);
}

static int proj_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, proj);

    return r < 0 ? r : ranks_exchange(s, GATHER_X, s->be->shape->n_embd);
}

/* Columns of h, by the product itself where it has both gates and ups. */
static int gate_up(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct launch l = {kernel_glu, s->grid.rows, 1, CUDA_THREADS, "glu", 0};
    int r = step_gate_up(s, op);
    const struct glu_args a = {b->head, b->gate, b->up, op->weights->m[0].n_out, s->ff.kind, 1};

    assert(r < 0 || !s->packed);
    return r < 0 || s->ff.kind == PACK_PLAIN ? r : cuda_launch(b, &l, &a, sizeof(a));
}

static int gate_up_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, gate_up);

    return r < 0 ? r : ranks_exchange(s, GATHER_H, (uint32_t)op->w[0]->ne[1]);
}

static int route_ranks(struct step *s, const struct model_op *op) {
    return each(s, op, step_route);
}

/* Columns of each pair's h. */
static int gates(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_used = b->shape->n_expert_used;
    const struct launch l = {kernel_glu, s->grid.rows * n_used, 1, CUDA_THREADS, "glu", 0};
    enum pack_kind kind;
    int r = experts_gates(s, op, &kind);
    const struct glu_args a = {b->head, b->experts.gate, b->experts.up, op->weights->m[0].n_out,
                               kind,    n_used};

    return r < 0 || kind == PACK_PLAIN ? r : cuda_launch(b, &l, &a, sizeof(a));
}

/* Columns of each pair's y, and their sum to those of x. */
static int downs(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_used = b->shape->n_expert_used;
    struct pack_args pack =
        step_pack_args(b, PACK_PLAIN, ranks_whole_of(b, GATHER_E), NULL, b->shape->n_ff_expert);

    pack.each = n_used;
    int r = ranks_pack(b, s->grid.rows * n_used, &pack);
    r = r < 0 ? r : experts_downs(s, op);
    b->cores = wgmma_takes(b, s->grid.rows);
    return r < 0 ? r : experts_combine(s, op, NULL, NULL);
}

static int experts_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, gates);

    r = r < 0 ? r : ranks_exchange(s, GATHER_E, s->be->shape->n_ff_expert);
    r = r < 0 ? r : each(s, op, downs);
    return r < 0 ? r : ranks_exchange(s, GATHER_X, s->be->shape->n_embd);
}

static int logits_ranks(struct step *s, const struct model_op *op) {
    int r = each(s, op, step_pack_wanted);

    return r < 0 ? r : step_logit_rows(s, 0, MIN(s->grid.wants, LOGIT_ROWS));
}

/* What the round before left in be.z may still be copied. */
int ranks_logit_rows(struct step *s, uint32_t first, uint32_t n) {
    struct ranks *k = s->be->ranks;
    const uint32_t *count = step_wanted(s, first, n).count;
    int r = first > 0 ? ranks_meet_in_step(k, &from_first) : 0;

    if (n == 0)
        return 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        struct step *part = ranks_step_of(s, i);
        const struct operand x = step_wanted(part, first, n);

        r = ranks_use(k, i);
        if (r == 0 && cuda_matmul(k->be[i], part->head, &x, false) < 0)
            r = ranks_lose(k, k->be[i]);
    }
    r = r < 0 ? r : ranks_meet_in_step(k, &to_first);
    return r < 0 ? r : ranks_take_all(k, 0, GATHER_LOGITS, s->be->shape->n_vocab, count, n);
}

static int sample_ranks(struct step *s) {
    struct ranks *k = s->be->ranks;
    int r = step_sample(s) < 0 ? ranks_lose(k, s->be) : 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        r = ranks_use(k, i);
        if (r == 0 && i > 0 && step_record(ranks_step_of(s, i)) < 0)
            r = ranks_lose(k, k->be[i]);
    }
    return r;
}

static int end_ranks(struct step *s, struct engine_result *out) {
    struct ranks *k = s->be->ranks;
    int r = 0;

    for (uint32_t i = k->n; i-- > 1 && r == 0;) {
        r = ranks_use(k, i);
        if (r == 0 && step_wait(ranks_step_of(s, i)) < 0)
            r = ranks_lose(k, k->be[i]);
    }
    r = r < 0 ? r : ranks_use(k, 0);
    return r == 0 && step_end(s, out) < 0 ? ranks_lose(k, s->be) : r;
}

static int copy_ranks(struct be *b, const struct engine_copy *c) {
    struct ranks *k = b->ranks;
    int r = 0;

    for (uint32_t i = k->n; i-- > 0 && r == 0;) {
        r = ranks_use(k, i);
        if (r == 0 && step_copy(k->be[i], c) < 0)
            r = ranks_lose(k, k->be[i]);
    }
    return r;
}

void ranks_step_ops(struct be_ops *all) {
    all->begin = begin_ranks;
    memset(all->run, 0, sizeof(all->run));
    all->run[OP_EMBED] = embed_ranks;
    all->run[OP_QKV] = qkv_ranks;
    all->run[OP_ATTEND] = attend_ranks;
    all->run[OP_PROJ] = proj_ranks;
    all->run[OP_GATE_UP] = gate_up_ranks;
    all->run[OP_ROUTE] = route_ranks;
    all->run[OP_EXPERTS] = experts_ranks;
    all->run[OP_LOGITS] = logits_ranks;
    all->sample = sample_ranks;
    all->end = end_ranks;
    all->copy = copy_ranks;
}
