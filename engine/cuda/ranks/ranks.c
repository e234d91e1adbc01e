/*
 * ranks - devices that divide the matrices of a model: which part each has, and the ops of a step
 * (docs/design/cuda-devices.md). Each rank computes its part of an op as a single device would,
 * then the ranks exchange their columns.
 *
 * In an exchange, each stream records its event and waits for the others' events. The next kernel
 * then reads the columns of other ranks in their memory; no stream writes to another device. A rank
 * may overwrite its columns once all ranks have read them, that is, after the next exchange, whose
 * events follow the reads. If the same buffer is exchanged twice in succession, a meeting must come
 * in between; only rounds of logits do this. When the first device gets the logits, the other ranks
 * do not wait.
 */

#include "engine/cuda/ranks/ranks.h"

#include <assert.h>
#include <errno.h>

#include "base/try.h"

/* an exchange: afterwards all ranks may read the columns of each */
static const struct meeting all_meet = {UINT32_MAX, UINT32_MAX};
static const struct meeting to_first = {OTHER_RANKS, FIRST_RANK};
static const struct meeting from_first = {FIRST_RANK, OTHER_RANKS};

struct model_op ranks_part_of(const struct be *b, const struct model_op *op) {
    struct model_op part = *op;

    part.heads.n /= b->group.n;
    part.heads.n_kv /= cuda_page_ranks(b);
    if (op->weights)
        part.weights = op->weights->rank[b->group.rank];
    return part;
}

/* Checks that the key heads of each layer, or heads that share one key, can be divided. Returns 0
 * or -EINVAL. */
static int check_heads(const struct model_shape *s, uint32_t n, struct err *err) {
    uint32_t n_heads = s->mla.rank ? s->n_head : s->delta.n_key_head;

    for (uint32_t i = 0; i < s->n_ops && !s->mla.rank; i++)
        if (s->op[i].heads.n_kv % n)
            return err_set(err, 0, "devices",
                           "%u devices do not divide the %u key heads of layer %u: name fewer", n,
                           s->op[i].heads.n_kv, s->op[i].layer);
    if (n_heads % n == 0)
        return 0;
    return err_set(err, 0, "devices",
                   "%u devices do not divide the %u %sheads of the model: name fewer", n, n_heads,
                   s->mla.rank ? "" : "key ");
}

/* Returns the room for pages: the least room of a rank, times the ranks that divide a page. */
static int room_ranks(const struct model_shape *shape, const struct engine_opts *o, uint64_t *bytes,
                      struct err *err) {
    uint64_t least = UINT64_MAX, room[ENGINE_DEVICES];
    struct rank rank[ENGINE_DEVICES];
    uint32_t n = several_list(o, NULL, rank);

    TRY(check_heads(shape, n, err));
    TRY(cuda_rooms(shape, o, rank, n, room, err));
    for (uint32_t i = 0; i < n; i++)
        least = MIN(least, room[i]);
    *bytes = (shape->mla.rank ? 1 : n) * least;
    return 0;
}

static int open_ranks(struct be **out, const struct be_opts *o, struct err *err) {
    struct rank rank[ENGINE_DEVICES];

    TRY(check_heads(o->shape, several_list(o->engine, NULL, rank), err));
    return several_open(out, o, err);
}

/* -- the exchange of columns ------------------------------------------------------------------- */

/* Records the event of @b on its stream. */
static int record_ready(const struct be *b) {
    int e = b->api->use(b->about.number);

    if (e)
        return e;
    return b->api->event_record(b->group.ready, b->queue.stream);
}

/* Makes later work of @b wait for the events of ranks @of. */
static int wait_ready(const struct ranks *k, const struct be *b, uint32_t of) {
    int e = b->api->use(b->about.number);

    for (uint32_t j = 0; j < k->n && e == 0; j++)
        if (k->be[j] != b && of >> j & 1)
            e = b->api->event_wait(k->be[j]->group.ready, b->queue.stream);
    return e;
}

int ranks_meet(struct ranks *k, const struct meeting *m, struct be **failed) {
    struct be *b = NULL;
    int e = 0;

    for (uint32_t i = k->n; i-- > 0 && e == 0;) {
        b = k->be[i];
        if (m->of >> i & 1)
            e = record_ready(b);
    }
    for (uint32_t i = k->n; i-- > 0 && e == 0;) {
        b = k->be[i];
        if (m->by >> i & 1)
            e = wait_ready(k, b, m->of);
    }
    if (failed)
        *failed = b;
    return e;
}

static int ranks_meet_now(struct ranks *k, const struct meeting *m) {
    struct be *failed = k->be[0];
    int e = 0;

    if (!failed->fault.lost)
        e = ranks_meet(k, m, &failed);
    for (uint32_t i = 0; i < k->n; i++)
        k->be[i]->queue.waits |= m->by >> i & 1;
    return cuda_check(failed, e, "cudaEventRecord, cudaStreamWaitEvent");
}

/* Enqueues a meeting as a part of the step, so that it is recorded in graphs. */
static int ranks_meet_in_step(struct ranks *k, const struct meeting *m) {
    struct be *first = k->be[0];

    if (first->graphs.replaying)
        return cuda_check(first, 0, "");
    if (first->graphs.noting)
        graph_note(first, NOTE_MEETING, NULL, false, m, sizeof(*m));
    return ranks_meet_now(k, m);
}

/* Returns the columns that the ranks have in their buffers at @own. Those of value heads are
 * divided in several pieces. */
static struct shares ranks_shares(const struct ranks *k, size_t own, uint32_t n) {
    bool values = own == BE_AT(recurrent.out);
    uint32_t n_pieces = values ? rank_value_heads(k->be[0]).n : 1, period = n / n_pieces;
    struct shares all = {.n = n, .n_shares = k->n, .period = period};

    assert(n % n_pieces == 0);
    for (uint32_t j = 0; j < k->n; j++) {
        uint32_t first = rank_cut(period, j, k->n), n_own = rank_cut(period, j + 1, k->n) - first;

        all.share[j] = (struct share){load_buffer(k->be[j], own), first, n_pieces * n_own};
    }
    return all;
}

int ranks_pack(struct be *b, uint32_t n_rows, size_t own, const struct pack_args *a) {
    const struct pack_shares_args shares = {*a, ranks_shares(b->group.ranks, own, a->n)};

    assert(a->kind == PACK_PLAIN && !a->x && !a->x_stride);
    return CUDA_LAUNCH(b, pack_shares, n_rows, 1, PACK_THREADS, &shares);
}

int ranks_residual(struct be *b, uint32_t n_rows, const struct residual_args *a) {
    if (a->t != b->act.o)
        return CUDA_LAUNCH(b, residual, n_rows, 1, CUDA_THREADS, a);
    const struct residual_shares_args shares = {
        *a, ranks_shares(b->group.ranks, BE_AT(act.own_t), a->n)};
    assert(!a->left.sums);
    return CUDA_LAUNCH(b, residual_shares, n_rows, 1, CUDA_THREADS, &shares);
}

/* -- the ops of a step ------------------------------------------------------------------------- */

/* Calls @run for each rank's part of @op. */
static int ranks_each(struct step *s, const struct model_op *op, step_op *run) {
    const struct ranks *k = s->be->group.ranks;

    for (uint32_t i = 0; i < k->n; i++) {
        struct be *b = several_nth(k, i);
        const struct model_op part = ranks_part_of(b, op);

        TRY(ON_DEVICE(b, run(several_step(s, b), &part)));
    }
    return 0;
}

/* Launches the whole step, recorded for all ranks, as one graph on the first device. */
static int launch_graph(struct ranks *k, struct step *s) {
    TRY(ranks_meet_now(k, &to_first));
    TRY(ON_DEVICE(s->be, graph_launch(s)));
    TRY(ranks_meet_now(k, &from_first));
    return cuda_check(s->be, s->be->api->use(s->be->about.number), "cudaSetDevice");
}

static int begin_ranks(struct be *first, const struct engine_batch *batch, struct step **out) {
    struct ranks *k = first->group.ranks;

    for (uint32_t i = 0; i < k->n; i++)
        TRY(ON_DEVICE(several_nth(k, i), step_upload(several_nth(k, i), batch, out)));
    if (batch->n_rows == 0)
        return 0;
    bool graph = graph_begin(*out);
    for (uint32_t i = 1; i < k->n; i++)
        graph_follow(several_step(*out, k->be[i]), *out);
    if (graph)
        return launch_graph(k, *out);
    /* all embed the samples of the first one */
    TRY(ranks_meet_now(k, &from_first));
    for (uint32_t i = 0; i < k->n; i++)
        TRY(ON_DEVICE(several_nth(k, i), step_start(several_step(*out, several_nth(k, i)))));
    return 0;
}

/* Adds the columns of all ranks to x. */
static int ranks_add(struct step *s, const struct model_op *op) {
    return residual_add(s, op, NULL);
}

int ranks_glu(struct step *s, enum pack_kind kind, float *gate, const float *up, uint32_t n,
              uint32_t each) {
    const struct glu_args a = {s->be->head, gate, up, n, kind, each};

    if (kind == PACK_PLAIN)
        return 0;
    return CUDA_LAUNCH(s->be, glu, s->grid.rows * each, 1, CUDA_THREADS, &a);
}

/* Applies the gates of the rank's own heads to its columns of o. */
int ranks_gate(struct step *s, const struct model_op *op) {
    const struct be *b = s->be;

    return ranks_glu(s, PACK_GATE, b->act.o, b->act.o_gate, op->heads.n * op->heads.dim, 1);
}

int ranks_multiply(struct step *s, const struct weights *w, size_t own, bool add) {
    const struct pack_args a = step_pack_args(s->be, PACK_PLAIN, NULL, NULL, w->n_in);

    TRY(ranks_pack(s->be, s->grid.rows, own, &a));
    return step_multiply(s, w, add);
}

/* Returns the op whose result @op completes and adds to x: the experts, or @op itself. */
static const struct model_op *ranks_sum(const struct model_op *op) {
    const struct model_op *from = op->links.from;

    if (from && from->kind == OP_EXPERTS)
        return from;
    return op;
}

/* Multiplies the columns of all ranks, and adds to the experts' sum if that is to be completed. */
int ranks_proj(struct step *s, const struct model_op *op) {
    size_t own[ACT_ROLES] = {
        [ACT_O] = BE_AT(act.o), [ACT_D] = BE_AT(recurrent.out), [ACT_H] = BE_AT(act.gate)};
    bool adds = ranks_sum(op) != op;

    assert(!adds || op->in == ACT_H);
    if (s->be->shape->mla.rank)
        own[ACT_D] = BE_AT(act.q);
    return ranks_multiply(s, op->weights, own[op->in], adds);
}

int ranks_own_glu(struct step *s, const struct model_op *op) {
    enum pack_kind kind = step_glu_left(s, op->weights, step_glu(op));

    return ranks_glu(s, kind, s->be->act.gate, s->be->act.up, op->weights->m[0].n_out, 1);
}

/* Computes the rank's columns of h. x is complete on each rank, so the host gets the first rank's
 * if it computes the FFN. */
int ranks_gate_up(struct step *s, const struct model_op *op) {
    if (op_is_hosts(s->be->shape, op)) {
        if (s->be->group.rank == 0)
            return ffn_on_host(s, op);
        return step_complete(s, op);
    }
    TRY(step_gate_up(s, op));
    return ranks_own_glu(s, op);
}

/* Adds the exchanged columns of t, which @op has completed, to a branch or to x. */
static int ranks_add_all(struct step *s, const struct model_op *op) {
    const struct model_op *sum = ranks_sum(op);

    if (sum->branch)
        return ranks_each(s, sum, residual_branch);
    if (op->links.into)
        return 0;
    return ranks_each(s, sum, ranks_add);
}

/* Computes an op as its row says. */
static int ranks_run(struct step *s, const struct model_op *op) {
    const struct op_code *code = cuda_ops[op->kind];
    const struct op_division *d = &code->division;
    struct ranks *k = s->be->group.ranks;

    if (d->run)
        return d->run(s, op);
    if (op->kind == OP_PROJ && op_is_hosts(s->be->shape, op)) { /* computed for the first rank */
        TRY(ON_DEVICE(s->be, cuda_join(s->be)));
        TRY(ranks_meet_in_step(k, &from_first));
        return ranks_each(s, op, step_finish);
    }
    if (d->reads)
        TRY(ranks_meet_in_step(k, &all_meet));
    TRY(ranks_each(s, op, d->part[0] ? d->part[0] : code->run));
    if (d->part[1]) {
        TRY(ranks_meet_in_step(k, &all_meet));
        TRY(ranks_each(s, op, d->part[1]));
    }
    if (!d->adds || (op->links.into && op->links.into->links.from == op))
        return 0; /* a later op completes the sum */
    TRY(ranks_meet_in_step(k, &all_meet));
    return ranks_add_all(s, op);
}

int ranks_logits(struct step *s, const struct model_op *op) {
    const struct ranks *k = s->be->group.ranks;

    for (uint32_t i = 0; i < k->n; i++)
        several_step(s, k->be[i])->logits = op;
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
        struct be *b = several_nth(k, i);
        const struct step *part = several_step(s, b);
        const struct operand x = step_wanted(part, first, n);

        TRY(ON_DEVICE(b, cuda_matmul(b, step_weights(b, part->logits), &x, false)));
    }
    TRY(ranks_meet_in_step(k, &to_first));
    const struct gather_args a = {step_wanted(s, first, n).count, s->be->sampling.logits,
                                  ranks_shares(k, BE_AT(sampling.z), s->be->shape->n_vocab)};
    uint32_t parts = (a.from.n + GATHER_COLUMNS - 1) / GATHER_COLUMNS;
    return ON_DEVICE(s->be, CUDA_LAUNCH(s->be, gather, n, parts, CUDA_THREADS, &a));
}

static int sample_ranks(struct step *s) {
    const struct ranks *k = s->be->group.ranks;

    TRY(step_sample(s));
    for (uint32_t i = 0; i + 1 < k->n; i++)
        TRY(ON_DEVICE(several_nth(k, i), step_record(several_step(s, several_nth(k, i)))));
    return several_use(s->be);
}

/* Copies a page. One that every rank has completely exists once in host memory, where the first
 * rank writes it and all ranks read it. Meetings order the copies: all reads of the old contents
 * come before the write, and the write before later reads. */
static int copy_ranks(struct be *b, const struct engine_copy *c) {
    bool whole = cuda_page_ranks(b) == 1;

    if (whole && (c->dir == COPY_D2H || c->dir == COPY_H2D))
        TRY(ranks_meet_now(b->group.ranks, &all_meet));
    if (whole && c->dir == COPY_D2H)
        return ON_DEVICE(b, step_copy(b, c));
    return several_copy(b, c);
}

/* Returns the name of a property of an op that several devices do not support, or NULL; the op's
 * kind is supported. */
static const char *ranks_lack(const struct model_shape *s, const struct model_op *op) {
    const struct op_division *division = &cuda_ops[op->kind]->division;
    const char *what = be_lacks(&weft_backend_cuda, s, op);

    if (what || !division->lacks)
        return what;
    return division->lacks(s, op);
}

void ranks_ops(struct be_ops *all) {
    static struct op_code code[OP_KINDS];
    static const struct op_code *rows[OP_KINDS];

    for (uint32_t i = 0; i < OP_KINDS; i++) {
        if (cuda_ops[i]->division.cut == CUT_NEVER)
            continue;
        code[i] = *cuda_ops[i];
        code[i].run = ranks_run;
        code[i].lacks = ranks_lack;
        if (code[i].division.takes)
            code[i].takes = code[i].division.takes;
        rows[i] = &code[i];
    }
    all->room = room_ranks;
    all->open = open_ranks;
    all->copy = copy_ranks;
    all->begin = begin_ranks;
    all->op = rows;
    all->sample = sample_ranks;
}
