/*
 * ranks_step - the ops of a step on several devices (ranks.c): each rank computes its part of an op
 * as a single device would, then the ranks exchange their columns.
 */

#include <assert.h>

#include "base/try.h"
#include "engine/cuda/ranks/ranks.h"

/* Calls @run for each rank's part of @op. The first rank comes last, so that its device is current
 * afterwards. */
static int ranks_each(struct step *s, const struct model_op *op, step_op *run) {
    struct ranks *k = s->be->group.ranks;

    for (uint32_t i = k->n; i-- > 0;) {
        const struct model_op part = ranks_part_of(k->be[i], op);

        TRY(ON_RANK(k, i, run(ranks_step_of(s, i), &part)));
    }
    return 0;
}

/* Runs the op on each rank, then makes the columns of each readable for all. */
static int each_and_exchange(struct step *s, const struct model_op *op, step_op *run) {
    TRY(ranks_each(s, op, run));
    return ranks_exchange(s);
}

/* Runs an op that needs no exchange, because x is complete on each rank and heads are divided. */
static int alone(struct step *s, const struct model_op *op) {
    return ranks_each(s, op, weft_backend_cuda.op[op->kind].run);
}

static int exchanged(struct step *s, const struct model_op *op) {
    return each_and_exchange(s, op, weft_backend_cuda.op[op->kind].run);
}

/* Launches the whole step, recorded for all ranks, as one graph on the first device. */
static int launch_graph(struct ranks *k, struct step *s) {
    struct be *b = s->be;

    TRY(ranks_meet_now(k, &to_first));
    TRY(ON_RANK(k, 0, graph_launch(s)));
    TRY(ranks_meet_now(k, &from_first));
    return cuda_check(b, b->api->use(b->number), "cudaSetDevice") < 0 ? ranks_lose(k, b) : 0;
}

static int begin_ranks(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct ranks *k = b->group.ranks;

    for (uint32_t i = k->n; i-- > 0;)
        TRY(ON_RANK(k, i, step_upload(k->be[i], batch, out)));
    if (batch->n_rows == 0)
        return 0;
    bool graph = graph_begin(*out);
    for (uint32_t i = 1; i < k->n; i++)
        graph_follow(ranks_step_of(*out, i), *out);
    if (graph)
        return launch_graph(k, *out);
    for (uint32_t i = k->n; i-- > 0;) {
        /* an upload or the beginning of a capture precedes the first launch */
        k->be[i]->waits = true;
        TRY(ON_RANK(k, i, step_start(ranks_step_of(*out, i))));
    }
    return 0;
}

/* Embeds on the first rank, then copies x to the others. */
static int embed_ranks(struct step *s, const struct model_op *op) {
    struct ranks *k = s->be->group.ranks;
    uint32_t n = s->be->shape->n_embd;
    const struct shares x = {n, 1, n, {{s->be->act.x, 0, n}}};
    const struct model_op part = ranks_part_of(k->be[0], op);

    TRY(step_embed(s, &part) < 0 ? ranks_lose(k, s->be) : ranks_meet_in_step(k, &from_first));
    for (uint32_t i = k->n; i-- > 1;)
        TRY(ranks_take(k, i, k->be[i]->act.x, &x, &k->be[i]->head->n_rows, s->grid.rows));
    return 0;
}

/* Adds the columns of all ranks to x. */
static int ranks_add(struct step *s, const struct model_op *op) {
    return residual_add(s, op, NULL);
}

/* Adds the result of @op to x on each rank, unless the next op does. */
static int join_ranks(struct step *s, const struct model_op *op) {
    return ranks_each(s, op, step_finish);
}

/* Exchanges the columns of t that @op has computed, then adds them to a branch or to x; @last is
 * the op after which they are complete. */
static int add_to_x(struct step *s, const struct model_op *op, const struct model_op *last) {
    TRY(ranks_exchange(s));
    if (op->branch)
        return ranks_each(s, op, residual_branch);
    return last->links.into ? 0 : ranks_each(s, op, ranks_add);
}

/* Multiplies gates by ups in place of the gates: @n columns for each of @each parts of the step's
 * rows. */
static int glu(struct step *s, enum pack_kind kind, float *gate, const float *up, uint32_t n,
               uint32_t each) {
    const struct glu_args a = {s->be->head, gate, up, n, kind, each};

    return kind == PACK_PLAIN ? 0
                              : CUDA_LAUNCH(s->be, glu, s->grid.rows * each, 1, CUDA_THREADS, &a);
}

/* Attends, then applies the gates of the rank's own heads, before columns are exchanged. */
static int ranks_attend(struct step *s, const struct model_op *op) {
    TRY(step_attend(s, op));
    if (!op->links.into) /* no GATE follows */
        return 0;
    return glu(s, PACK_GATE, s->be->act.o, s->be->act.o_gate, op->heads.n * op->heads.dim, 1);
}

static int attend_ranks(struct step *s, const struct model_op *op) {
    bool more = s->be->shape->mla.rank > 0; /* an MLA_OUT follows, which exchanges */

    return more ? ranks_each(s, op, ranks_attend) : each_and_exchange(s, op, ranks_attend);
}

/* Does nothing, since ranks_attend() has applied the gates. */
static int gate_ranks(struct step *s, const struct model_op *op) {
    assert(!op->w[0]);
    return 0;
}

/* Multiplies all columns of @in, those of every rank, by the rank's rows of the matrix. With @add,
 * adds to the result instead of replacing it. */
static int multiply_whole(struct step *s, const struct weights *w, enum gathered in, bool add) {
    const struct pack_args a =
        step_pack_args(s->be, PACK_PLAIN, ranks_whole_of(s->be, in), NULL, w->n_in);

    TRY(ranks_pack(s->be, s->grid.rows, in, &a));
    return step_multiply(s, w, add);
}

static int proj(struct step *s, const struct model_op *op) {
    return multiply_whole(s, op->weights,
                          op->in == ACT_H   ? GATHER_H
                          : op->in == ACT_D ? GATHER_D
                                            : GATHER_O,
                          false);
}

/* Adds a PROJ to the experts' result (OP_PROJ after OP_EXPERTS). */
static int proj_more(struct step *s, const struct model_op *op) {
    assert(op->in == ACT_H);
    return multiply_whole(s, op->weights, GATHER_H, true);
}

/* Makes all ranks wait for the layer that the host computes for the first rank. */
static int join_host(struct step *s) {
    struct ranks *k = s->be->group.ranks;

    TRY(ON_RANK(k, 0, cuda_join(s->be)));
    return ranks_meet_in_step(k, &from_first);
}

static int proj_ranks(struct step *s, const struct model_op *op) {
    const struct model_op *from = op->links.from;
    const struct model_op *experts = from && from->kind == OP_EXPERTS ? from : NULL;

    if (op->in == ACT_H && ffn_is_hosts(s->be->shape, op->layer)) {
        TRY(join_host(s));
        return join_ranks(s, op);
    }
    TRY(ranks_each(s, op, experts ? proj_more : proj));
    return add_to_x(s, experts ? experts : op, op);
}

/* Computes the rank's columns of h = act(gate) up, unless the product has done so itself. */
static int own_glu(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    enum pack_kind left = step_glu_left(s, w, step_glu(op));

    return glu(s, left, s->be->act.gate, s->be->act.up, w->m[0].n_out, 1);
}

static int gate_up(struct step *s, const struct model_op *op) {
    TRY(step_gate_up(s, op));
    return own_glu(s, op);
}

/* Hands an FFN over to the host. x is complete on each rank, so the host gets the first rank's. */
static int hand_ffn_over(struct step *s, const struct model_op *op) {
    return s->be->group.rank == 0 ? ffn_on_host(s, op) : step_complete(s, op);
}

static int gate_up_ranks(struct step *s, const struct model_op *op) {
    if (ffn_is_hosts(s->be->shape, op->layer))
        return ranks_each(s, op, hand_ffn_over);
    return each_and_exchange(s, op, gate_up);
}

/* Computes the rank's columns of h for each pair of a row and an expert. */
static int gates(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    enum pack_kind kind;

    TRY(experts_gates(s, op, &kind));
    return glu(s, kind, b->experts.gate, b->experts.up, op->weights->m[0].n_out,
               b->shape->n_expert_used);
}

/* Computes the rank's columns of y for each pair of a row and an expert. */
static int downs(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n_used = b->shape->n_expert_used;
    struct pack_args pack =
        step_pack_args(b, PACK_PLAIN, ranks_whole_of(b, GATHER_E), NULL, b->shape->n_ff_expert);

    pack.each = n_used;
    pack.cores = false;
    TRY(ranks_pack(b, s->grid.rows * n_used, GATHER_E, &pack));
    return experts_downs(s, op);
}

static int ranks_combine(struct step *s, const struct model_op *op) {
    return experts_combine(s, op, s->be->act.own_t, NULL);
}

/* Returns true if an op of @kind completes the sum of the experts of @op. */
static bool ranks_leaves(const struct model_op *op, enum op_kind kind) {
    return op->links.into && op->links.into->kind == kind;
}

/* Sums the experts' results and exchanges the sum. If a PROJ follows, it is added first, and the
 * exchange is left to it. */
static int sum_ranks(struct step *s, const struct model_op *op, const struct model_op *last) {
    TRY(ranks_each(s, op, ranks_combine));
    return ranks_leaves(op, OP_PROJ) ? 0 : add_to_x(s, op, last);
}

/* Computes the experts. If a SHARED follows, its result is added before the sum is exchanged. */
static int experts_ranks(struct step *s, const struct model_op *op) {
    TRY(each_and_exchange(s, op, gates));
    TRY(ranks_each(s, op, downs));
    return ranks_leaves(op, OP_SHARED) ? 0 : sum_ranks(s, op, op);
}

/* Computes the rank's columns of the shared expert's h. */
static int shared_gates(struct step *s, const struct model_op *op) {
    const struct weights *route = step_weights(s->be, op->links.from->links.from);

    TRY(step_pack(s, PACK_NORM, s->be->act.x, route->norm, s->be->shape->n_embd));
    TRY(step_gate_and_up(s, op->weights, step_glu(op)));
    return own_glu(s, op);
}

static int shared_down(struct step *s, const struct model_op *op) {
    return multiply_whole(s, op->weights->down, GATHER_H, false);
}

static int shared_ranks(struct step *s, const struct model_op *op) {
    TRY(each_and_exchange(s, op, shared_gates));
    TRY(ranks_each(s, op, shared_down));
    return sum_ranks(s, op->links.from, op);
}

static int logits_ranks(struct step *s, const struct model_op *op) {
    for (uint32_t i = 0; i < s->be->group.ranks->n; i++)
        ranks_step_of(s, i)->logits = op;
    TRY(ranks_each(s, op, step_pack_wanted));
    return step_logit_rows(s, 0, MIN(s->grid.wants, LOGIT_ROWS));
}

/* Computes rows of logits. A later round first waits for the first rank, whose copies in the
 * previous round may still read be.sampling.z of the others. */
int ranks_logit_rows(struct step *s, uint32_t first, uint32_t n) {
    struct ranks *k = s->be->group.ranks;
    const uint32_t *count = step_wanted(s, first, n).count;

    if (n == 0)
        return 0;
    TRY(first > 0 ? ranks_meet_in_step(k, &from_first) : 0);
    for (uint32_t i = k->n; i-- > 0;) {
        struct step *part = ranks_step_of(s, i);
        const struct operand x = step_wanted(part, first, n);

        TRY(ON_RANK(k, i, cuda_matmul(k->be[i], step_weights(k->be[i], part->logits), &x, false)));
    }
    TRY(ranks_meet_in_step(k, &to_first));
    const struct shares all = ranks_shares(k, GATHER_LOGITS, s->be->shape->n_vocab);
    return ranks_take(k, 0, s->be->sampling.logits, &all, count, n);
}

static int sample_ranks(struct step *s) {
    struct ranks *k = s->be->group.ranks;

    TRY(step_sample(s) < 0 ? ranks_lose(k, s->be) : 0);
    for (uint32_t i = k->n; i-- > 0;)
        TRY(ON_RANK(k, i, i ? step_record(ranks_step_of(s, i)) : 0));
    return 0;
}

static int end_ranks(struct step *s, struct engine_result *out) {
    struct ranks *k = s->be->group.ranks;

    for (uint32_t i = k->n; i-- > 1;)
        TRY(ON_RANK(k, i, step_wait(ranks_step_of(s, i))));
    return ON_RANK(k, 0, step_end(s, out));
}

int ranks_copy_state(struct be *b, uint32_t src, uint32_t dst) {
    struct ranks *k = b->group.ranks;

    for (uint32_t i = k->n; i-- > 0;)
        TRY(ON_RANK(k, i, step_copy_state(k->be[i], src, dst)));
    return 0;
}

/* Copies a page or a part of one on each rank. A page that every rank has completely exists once in
 * host memory, where the first rank writes it and all ranks read it. Meetings order the copies: all
 * reads of the old contents come before the write, and the write before later reads. */
static int copy_ranks(struct be *b, const struct engine_copy *c) {
    struct ranks *k = b->group.ranks;
    bool one = cuda_page_ranks(b) == 1 && c->dir == COPY_D2H;
    bool meets = cuda_page_ranks(b) == 1 && c->dir != COPY_D2D;

    TRY(meets ? ranks_meet_now(k, one ? &to_first : &from_first) : 0);
    for (uint32_t i = one ? 1 : k->n; i-- > 0;)
        TRY(ON_RANK(k, i, step_copy(k->be[i], c)));
    return 0;
}

/* Functions of divided ops, by kind; kinds without a row are not divided between devices. */
static const struct division {
    int (*run)(struct step *s, const struct model_op *op);
    /* op_code.takes, if it differs from that of one device */
    uint64_t takes;
} ranks_division[OP_KINDS] = {
    [OP_DEEP] = {alone},
    [OP_QKV] = {alone},
    [OP_STATE_IN] = {alone},
    [OP_MLA_IN] = {alone},
    [OP_MLA_Q] = {alone},
    [OP_MLA_KV] = {alone},
    [OP_ROUTE] = {alone},
    [OP_EMBED] = {embed_ranks},
    [OP_ATTEND] = {attend_ranks},
    [OP_GATE] = {gate_ranks, OP_BIT(OP_ATTEND)},
    /* the matrix of the shared expert adds to the experts' sum */
    [OP_PROJ] = {proj_ranks, OP_BIT(OP_EXPERTS) | OP_BIT(OP_GATE_UP)},
    [OP_JOIN] = {join_ranks},
    [OP_GATE_UP] = {gate_up_ranks},
    [OP_DELTA] = {exchanged},
    [OP_MLA_OUT] = {exchanged},
    [OP_EXPERTS] = {experts_ranks},
    [OP_SHARED] = {shared_ranks},
    [OP_LOGITS] = {logits_ranks},
};

void ranks_step_ops(struct be_ops *all) {
    static struct op_code code[OP_KINDS];

    for (uint32_t i = 0; i < OP_KINDS; i++) {
        code[i] = weft_backend_cuda.op[i];
        code[i].run = ranks_division[i].run;
        code[i].lacks = ranks_lack;
        if (ranks_division[i].takes)
            code[i].takes = ranks_division[i].takes;
    }
    all->begin = begin_ranks;
    all->op = code;
    all->sample = sample_ranks;
    all->end = end_ranks;
    all->copy = copy_ranks;
    all->copy_state = ranks_copy_state;
}
