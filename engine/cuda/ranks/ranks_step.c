/*
 * ranks_step - the ops of a step on several devices (ranks.c): each rank computes its part of an op
 * as a single device would, then the ranks exchange their columns.
 */

#include <assert.h>

#include "base/try.h"
#include "engine/cuda/ranks/ranks.h"

/* Calls @run for each rank's part of @op. */
static int ranks_each(struct step *s, const struct model_op *op, step_op *run) {
    const struct ranks *k = s->be->group.ranks;

    for (uint32_t i = 0; i < k->n; i++) {
        struct be *b = ranks_nth(k, i);
        const struct model_op part = ranks_part_of(b, op);

        TRY(ON_DEVICE(b, run(ranks_step_of(s, b), &part)));
    }
    return 0;
}

/* Launches the whole step, recorded for all ranks, as one graph on the first device. */
static int launch_graph(struct ranks *k, struct step *s) {
    TRY(ranks_meet_now(k, &to_first));
    TRY(ON_DEVICE(s->be, graph_launch(s)));
    TRY(ranks_meet_now(k, &from_first));
    return cuda_check(s->be, s->be->api->use(s->be->number), "cudaSetDevice");
}

static int begin_ranks(struct be *first, const struct engine_batch *batch, struct step **out) {
    struct ranks *k = first->group.ranks;

    for (uint32_t i = 0; i < k->n; i++)
        TRY(ON_DEVICE(ranks_nth(k, i), step_upload(ranks_nth(k, i), batch, out)));
    if (batch->n_rows == 0)
        return 0;
    bool graph = graph_begin(*out);
    for (uint32_t i = 1; i < k->n; i++)
        graph_follow(ranks_step_of(*out, k->be[i]), *out);
    if (graph)
        return launch_graph(k, *out);
    for (uint32_t i = 0; i < k->n; i++) {
        struct be *b = ranks_nth(k, i);

        /* an upload or the beginning of a capture precedes the first launch */
        b->waits = true;
        TRY(ON_DEVICE(b, step_start(ranks_step_of(*out, b))));
    }
    return 0;
}

/* Embeds on the first rank, then copies x to the others. */
int ranks_embed(struct step *s, const struct model_op *op) {
    struct ranks *k = s->be->group.ranks;
    uint32_t n = s->be->shape->n_embd;
    const struct shares x = {n, 1, n, {{s->be->act.x, 0, n}}};
    const struct model_op part = ranks_part_of(s->be, op);

    TRY(step_embed(s, &part));
    TRY(ranks_meet_in_step(k, &from_first));
    for (uint32_t i = 0; i + 1 < k->n; i++) {
        struct be *b = ranks_nth(k, i);

        TRY(ranks_gather(b, b->act.x, &x, &b->head->n_rows, s->grid.rows));
    }
    return 0;
}

/* Adds the columns of all ranks to x. */
static int ranks_add(struct step *s, const struct model_op *op) {
    return residual_add(s, op, NULL);
}

int ranks_glu(struct step *s, enum pack_kind kind, const struct ranks_glu *of) {
    const struct glu_args a = {s->be->head, of->gate, of->up, of->n, kind, of->each};

    if (kind == PACK_PLAIN)
        return 0;
    return CUDA_LAUNCH(s->be, glu, s->grid.rows * of->each, 1, CUDA_THREADS, &a);
}

/* Applies the gates of the rank's own heads to its columns of o. */
int ranks_gate(struct step *s, const struct model_op *op) {
    const struct ranks_glu own = {s->be->act.o, s->be->act.o_gate, op->heads.n * op->heads.dim, 1};

    return ranks_glu(s, PACK_GATE, &own);
}

int ranks_multiply(struct step *s, const struct weights *w, enum gathered in, bool add) {
    const struct pack_args a =
        step_pack_args(s->be, PACK_PLAIN, ranks_columns(s->be, in).whole, NULL, w->n_in);

    TRY(ranks_pack(s->be, s->grid.rows, in, &a));
    return step_multiply(s, w, add);
}

/* Returns the op whose result @op completes and adds to x: the experts, or @op itself. */
static const struct model_op *ranks_sum(const struct model_op *op) {
    const struct model_op *from = op->links.from;

    return from && from->kind == OP_EXPERTS ? from : op;
}

static bool ranks_is_hosts(const struct step *s, const struct model_op *op) {
    return op->kind == OP_PROJ && op->in == ACT_H && ffn_is_hosts(s->be->shape, op->layer);
}

/* Multiplies the columns of all ranks, and adds to the experts' sum if that is to be completed. */
int ranks_proj(struct step *s, const struct model_op *op) {
    static const enum gathered columns[ACT_ROLES] = {
        [ACT_O] = GATHER_O, [ACT_D] = GATHER_D, [ACT_H] = GATHER_H};
    bool adds = ranks_sum(op) != op;

    assert(!adds || op->in == ACT_H);
    return ranks_multiply(s, op->weights, columns[op->in], adds);
}

int ranks_own_glu(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    const struct ranks_glu own = {s->be->act.gate, s->be->act.up, w->m[0].n_out, 1};

    return ranks_glu(s, step_glu_left(s, w, step_glu(op)), &own);
}

/* Computes the rank's columns of h. x is complete on each rank, so the host gets the first rank's
 * if it computes the FFN. */
int ranks_gate_up(struct step *s, const struct model_op *op) {
    if (ffn_is_hosts(s->be->shape, op->layer)) {
        if (s->be->group.rank == 0)
            return ffn_on_host(s, op);
        return step_complete(s, op);
    }
    TRY(step_gate_up(s, op));
    return ranks_own_glu(s, op);
}

/* Makes all ranks wait for the layer that the host computes for the first rank, and adds it. */
static int ranks_join_host(struct step *s, const struct model_op *op) {
    struct ranks *k = s->be->group.ranks;

    TRY(ON_DEVICE(s->be, cuda_join(s->be)));
    TRY(ranks_meet_in_step(k, &from_first));
    return ranks_each(s, op, step_finish);
}

/* Exchanges the columns of t that @op has completed, then adds them to a branch or to x. */
static int ranks_add_all(struct step *s, const struct model_op *op) {
    const struct model_op *sum = ranks_sum(op);

    TRY(ranks_exchange(s));
    if (sum->branch)
        return ranks_each(s, sum, residual_branch);
    if (op->links.into)
        return 0;
    return ranks_each(s, sum, ranks_add);
}

/* Returns true if a later op completes the sum of @op. */
static bool ranks_is_part(const struct model_op *op) {
    return op->links.into && op->links.into->links.from == op;
}

/* Computes an op as its row says. */
static int ranks_run(struct step *s, const struct model_op *op) {
    const struct op_code *code = &cuda_code[op->kind];
    const struct op_division *d = &code->division;

    if (d->run)
        return d->run(s, op);
    if (ranks_is_hosts(s, op))
        return ranks_join_host(s, op);
    if (d->reads)
        TRY(ranks_exchange(s));
    TRY(ranks_each(s, op, d->part[0] ? d->part[0] : code->run));
    if (d->part[1]) {
        TRY(ranks_exchange(s));
        TRY(ranks_each(s, op, d->part[1]));
    }
    if (!d->adds || ranks_is_part(op))
        return 0;
    return ranks_add_all(s, op);
}

int ranks_logits(struct step *s, const struct model_op *op) {
    const struct ranks *k = s->be->group.ranks;

    for (uint32_t i = 0; i < k->n; i++)
        ranks_step_of(s, k->be[i])->logits = op;
    TRY(ranks_each(s, op, step_pack_wanted));
    return step_logit_rows(s, 0, MIN(s->grid.wants, LOGIT_ROWS));
}

/* Computes rows of logits. A later round first waits for the first rank, whose copies in the
 * previous round may still read be.sampling.z of the others. */
int ranks_logit_rows(struct step *s, uint32_t first, uint32_t n) {
    struct ranks *k = s->be->group.ranks;

    if (n == 0)
        return 0;
    if (first > 0)
        TRY(ranks_meet_in_step(k, &from_first));
    for (uint32_t i = 0; i < k->n; i++) {
        struct be *b = ranks_nth(k, i);
        const struct step *part = ranks_step_of(s, b);
        const struct operand x = step_wanted(part, first, n);

        TRY(ON_DEVICE(b, cuda_matmul(b, step_weights(b, part->logits), &x, false)));
    }
    TRY(ranks_meet_in_step(k, &to_first));
    const struct shares all = ranks_shares(k, GATHER_LOGITS, s->be->shape->n_vocab);
    return ranks_gather(s->be, s->be->sampling.logits, &all, step_wanted(s, first, n).count, n);
}

static int sample_ranks(struct step *s) {
    const struct ranks *k = s->be->group.ranks;

    TRY(step_sample(s));
    for (uint32_t i = 0; i + 1 < k->n; i++)
        TRY(ON_DEVICE(ranks_nth(k, i), step_record(ranks_step_of(s, ranks_nth(k, i)))));
    return ranks_use(s->be);
}

void ranks_step_ops(struct be_ops *all) {
    static struct op_code code[OP_KINDS];

    for (uint32_t i = 0; i < OP_KINDS; i++) {
        const struct op_division *d = &cuda_code[i].division;

        code[i] = cuda_code[i];
        code[i].run = d->cut == CUT_NEVER ? NULL : ranks_run;
        code[i].lacks = ranks_lack;
        if (d->takes)
            code[i].takes = d->takes;
    }
    all->begin = begin_ranks;
    all->op = code;
    all->sample = sample_ranks;
}
