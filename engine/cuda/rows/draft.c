/*
 * draft - the drafting blocks of a model (engine/arch/mtp.c), and block drafters
 * (engine/arch/dflash.c), whose keys are computed from activations of the model's layers.
 *
 * Hidden states stay on the device. From the batches the host knows the positions whose states a
 * slot has, so a step only says whether the state before its first row exists. The states of a
 * step's last rows overwrite older ones. The last kernel that reads the older ones therefore stores
 * them: that of the last DRAFT_IN if it follows KEEP in the pass, else that of KEEP.
 */

#include <assert.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/cuda/rows/kernels_blocks.h"

void draft_begin(struct step *s) {
    struct kept *k = &s->be->draft.of;
    const struct engine_batch *b = s->batch;

    for (uint32_t i = 0; i < b->n_seqs && k->n_slots; i++)
        kept_begin(k, &b->seq[i]);
}

bool draft_has_before(const struct be *b, const struct engine_seq *s) {
    return b->draft.of.n_slots && s->pos0 > 0 && kept_has(&b->draft.of, s, s->pos0 - 1);
}

void draft_uploaded(struct step *s) {
    struct kept *k = &s->be->draft.of;

    for (uint32_t i = 0; i < s->batch->n_seqs && k->n_slots; i++)
        kept_end(k, &s->batch->seq[i]);
}

int step_keep(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    /* with streams or an indexer, DRAFT_IN follows in steps with holes, too */
    bool follows = op->keep.streams || b->shape->sparse.n_layer;
    bool now = op->links.paired || (s->batch->holes && !follows);
    const struct keep_args a = {
        .batch = b->head,
        .x = op->keep.streams ? b->compressed.s : b->act.x,
        .weight = op->weights->norm,
        .hidden = b->draft.hidden,
        .kept = now ? b->draft.kept : NULL,
        .n = hidden_width(b->shape),
        .n_kept = ENGINE_KEPT,
        .centred = op->keep.centred,
        .eps = b->shape->rms_eps,
    };

    /* assistants, which have another width, have no KEEP */
    assert(b->draft.hidden && op->width == b->shape->n_embd);
    if (op->keep.streams) { /* the drafting block changes x, which WANT_HIDDEN needs */
        struct keep_args x = a;

        x.x = b->act.x;
        x.hidden = b->draft.x;
        x.kept = NULL;
        x.n = b->shape->n_embd;
        TRY(CUDA_LAUNCH(b, keep, s->grid.rows, 1, PACK_THREADS, &x));
    }
    return CUDA_LAUNCH(b, keep, s->grid.rows, 1, PACK_THREADS, &a);
}

/* Copies x of all rows of the grid, also of rows beyond the batch, to part @i of @n of each row of
 * @to. */
static int store_x(struct step *s, float *to, uint32_t i, uint32_t n) {
    struct be *b = s->be;
    size_t row = b->shape->n_embd * sizeof(float);
    const struct copy_args a = {
        .from = (const uint8_t *)b->act.x,
        .to = (uint8_t *)to + i * row,
        .from_layer = row,
        .to_layer = n * row,
        .page_bytes = row,
    };

    return CUDA_LAUNCH(b, copy_page, 1, s->grid.rows, CUDA_THREADS, &a);
}

/* Packs both norms and computes x as their product; with @streams once for each stream. */
int step_draft_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    uint32_t n = b->shape->n_embd, n_parts = op->keep.streams ? b->shape->stream.n : 1;
    struct pair_args a = {
        .batch = b->head,
        .hidden = b->draft.hidden,
        .x_norm = op->weights->q_norm,
        .h_norm = op->weights->k_norm,
        .kept = b->draft.kept,
        .pair = b->draft.pair,
        .n = hidden_width(b->shape),
        .n_x = n,
        .n_kept = ENGINE_KEPT,
        .eps = b->shape->rms_eps,
        .pack = step_pack_args(b, PACK_PLAIN, b->draft.pair, NULL, 2 * n),
    };

    for (uint32_t i = 0; i < n_parts; i++) {
        a.x = NULL;
        if (i == 0)
            a.x = b->act.x;
        a.part = i * n;
        a.keeps = !s->batch->model && op->part == 0 && i + 1 == n_parts;
        TRY(CUDA_LAUNCH(b, pair, s->grid.rows, 1, PACK_THREADS, &a));
        TRY(step_multiply(s, op->weights, false));
        TRY(op->keep.streams ? store_x(s, b->compressed.s, i, n_parts) : 0);
    }
    return 0;
}

int step_tap(struct step *s, const struct model_op *op) {
    return store_x(s, s->be->draft.tap, op->part, s->be->shape->n_taps);
}

/* Writes to be.act.o, since x still belongs to the model. */
int step_fuse(struct step *s, const struct model_op *op) {
    TRY(step_pack(s, PACK_PLAIN, s->be->draft.tap, NULL, op->weights->n_in));
    return step_multiply(s, op->weights, false);
}

/* Computes be.act.o = the convolution of the rows of @in. */
static int draft_convolve(struct step *s, const struct weights *w, uint32_t side, const float *in) {
    struct be *b = s->be;
    const struct convolve_args a = {
        .batch = b->head,
        .in = in,
        .d = b->draft.d,
        .base = w->weigh,
        .out = b->act.o,
        .n = b->shape->n_embd,
        .kernel = b->shape->block.kernel,
        .group = b->shape->block.group,
        .side = side,
    };

    return CUDA_LAUNCH(b, convolve, s->grid.rows, 1, CUDA_THREADS, &a);
}

/* Packs the result of the convolution for the next op. x is unchanged, as BLOCK_OUT needs it. */
int step_block_in(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    const struct keep_args c = {
        .batch = b->head,
        .x = b->act.x,
        .weight = w->norm,
        .hidden = b->draft.hidden,
        .n = b->shape->n_embd,
        .eps = b->shape->rms_eps,
    };

    TRY(step_norm(s, op));
    TRY(step_multiply(s, w, false));
    TRY(CUDA_LAUNCH(b, keep, s->grid.rows, 1, PACK_THREADS, &c));
    TRY(draft_convolve(s, w, 0, b->draft.hidden));
    return step_pack(s, PACK_PLAIN, b->act.o, NULL, b->shape->n_embd);
}

int step_block_out(struct step *s, const struct model_op *op) {
    TRY(draft_convolve(s, op->weights, 1, s->be->act.q));
    return step_finish(s, op);
}

/* Launches the kernel once for each row of a block that drafts, in order. A launch before these
 * only resets the best token of the first row. */
static int chain(struct step *s, uint32_t first, uint32_t n) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    const struct weights *w = s->logits->links.into->weights;
    struct chain_args a = {
        .batch = b->head,
        .before = w->raw,
        .after = w->after_raw,
        .logits = b->sampling.logits,
        .best = b->draft.pick,
        .first = first,
        .n_vocab = m->n_vocab,
        .rank = m->block.rank,
        .first_draft = m->first_draft,
        .place = m->first_draft - 1,
    };
    uint32_t parts = (a.n_vocab + CHAIN_TOKENS - 1) / CHAIN_TOKENS;

    assert(n <= LOGIT_ROWS && a.rank <= CHAIN_RANK);
    TRY(CUDA_LAUNCH(b, chain, 1, n, CUDA_THREADS, &a));
    while (++a.place < m->n_block)
        TRY(CUDA_LAUNCH(b, chain, parts, n, CUDA_THREADS, &a));
    return 0;
}

/* Selects the tokens of the @n wants from @first on. */
static int select_tokens(struct step *s, uint32_t first, uint32_t n) {
    struct be *b = s->be;
    const struct weights *w = s->logits->links.into->weights;
    struct operand x = step_wanted(s, first, n);
    const struct select_args a = {
        .batch = b->head,
        .before = w->raw,
        .after = w->after_raw,
        .g = b->draft.g,
        .logits = b->sampling.logits,
        .pick = b->draft.pick,
        .best = b->draft.best,
        .first = first,
        .n_vocab = b->shape->n_vocab,
        .rank = b->shape->block.rank,
        .top_k = b->shape->block.top_k,
    };

    assert(n <= LOGIT_ROWS && a.top_k <= SELECT_CANDIDATES);
    TRY(cuda_matmul(b, w, &x, false));
    TRY(CUDA_LAUNCH(b, candidates, n, 1, CUDA_THREADS, &a));
    return CUDA_LAUNCH(b, choose_candidate, n, 1, CUDA_THREADS, &a);
}

int draft_select(struct step *s, uint32_t first, uint32_t n) {
    if (s->be->shape->block.top_k)
        return select_tokens(s, first, n);
    return chain(s, first, n);
}

/* Does nothing, since step_logit_rows() selects among the logits of each round. The selector uses
 * the wanted rows as LOGITS has packed them. */
int step_select(struct step *s, const struct model_op *op) {
    assert(s->logits->links.into == op);
    return 0;
}

/* Computes keys and values without queries. */
int step_keys(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct store_args store = step_store_args(b, op);

    assert(op->weights->n_mats == 2);
    store.n_head = 0;
    store.v = b->act.v;
    if (b->shape->n_taps)
        TRY(step_pack(s, PACK_NORM, b->act.o, op->weights->norm, b->shape->n_embd));
    else
        TRY(step_norm(s, op));
    TRY(step_multiply(s, op->weights, false));
    return CUDA_LAUNCH(b, store, s->grid.rows, (store.n_kv + 7) / 8, CUDA_THREADS, &store);
}

int step_holes(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct store_args a = {
        .batch = b->head,
        .pages = step_pages_of(b, op),
        .cls = op->kv.cls,
        .shape = cuda_page_shape(b, &op->heads),
        .n_kv = op->heads.n_kv,
    };

    return CUDA_LAUNCH(b, holes, s->grid.rows, (a.n_kv + 7) / 8, CUDA_THREADS, &a);
}

/* Counts buffers of a block drafter, which the last device computes if devices divide the
 * layers. */
static void add_drafter(struct be *b) {
    const struct block_shape *s = &b->shape->block;
    size_t rows = b->opts->max_rows, n = b->shape->n_embd, wants = b->opts->max_wants;
    size_t scored = MIN(wants, LOGIT_ROWS);

    memory_add_words(b, &b->draft.tap, rows * b->shape->n_taps * n);
    if (!has_last_layer(b))
        return;
    if (s->kernel) {
        memory_add_words(b, &b->draft.hidden, rows * n);
        memory_add_words(b, &b->draft.d, rows * 2 * s->kernel * (n / s->group));
    }
    if (s->rank && !s->top_k)
        memory_add(b, &b->draft.pick, wants, sizeof(uint64_t), "logits", false);
    if (s->top_k) {
        memory_add(b, &b->draft.g, scored * s->rank, sizeof(float), "logits", false);
        memory_add(b, &b->draft.pick, scored * s->top_k, sizeof(uint64_t), "logits", false);
        memory_add(b, &b->draft.best, wants, sizeof(int32_t), "logits", false);
    }
}

/* Before open the number of slots is unknown, so the largest one is used. */
static void memory_draft(struct be *b) {
    size_t rows = b->opts->max_rows, n = b->shape->n_embd, n_slots = b->draft.of.n_slots;

    if (b->shape->n_taps)
        add_drafter(b);
    if (!b->shape->drafts || b->shape->n_taps)
        return;
    if (!n_slots)
        n_slots = MAX(b->opts->max_seqs, b->opts->n_states);
    size_t n_hidden = hidden_width(b->shape);
    memory_add_words(b, &b->draft.hidden, rows * n_hidden);
    memory_add_words(b, &b->draft.pair, rows * 2 * n);
    memory_add_words(b, &b->draft.kept, n_slots * ENGINE_KEPT * n_hidden);
    memory_add_words(b, &b->draft.x, b->shape->keeps_streams ? rows * n : 0);
}

const struct op_family draft_family = {.scratch = memory_draft};

/* -- rows of the table of ops (engine/cuda/ops.c) ---------------------------------------------- */

static const char *keys_lacks(const struct model_shape *s, const struct model_op *op) {
    if (op->qkv.norm_all)
        return "drafting blocks with norms over all heads together";
    return NULL;
}

static const char *tap_lacks(const struct model_shape *s, const struct model_op *op) {
    if (s->mla.rank)
        return "block drafters beside latent attention";
    if (s->n_embd % 4)
        return "block drafters beside rows whose width 4 does not divide";
    return NULL;
}

static int load_chain(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    TRY(load_table(b, op->w[1], &w->raw, err));
    return load_table(b, op->w[0], &w->after_raw, err);
}

const struct op_code cuda_op_keys = {
    .run = step_keys,
    .lacks = keys_lacks,
    .out = {BE_AT(act.k), BE_AT(act.v)},
    .adds = CUDA_ADDITIONS,
};

const struct op_code cuda_op_holes = {
    .run = step_holes,
};

const struct op_code cuda_op_keep = {
    .run = step_keep,
    .family = &draft_family,
};

const struct op_code cuda_op_draft_in = {
    .run = step_draft_in,
    .out = {BE_AT(act.x)},
    .family = &draft_family,
};

const struct op_code cuda_op_tap = {
    .run = step_tap,
    .lacks = tap_lacks,
    .family = &draft_family,
};

const struct op_code cuda_op_fuse = {
    .run = step_fuse,
    .out = {BE_AT(act.o)},
    .family = &draft_family,
};

const struct op_code cuda_op_block_in = {
    .run = step_block_in,
    .decodes = true,
    .out = {BE_AT(draft.d)},
    .adds = CUDA_ADDITIONS,
};

const struct op_code cuda_op_block_out = {
    .run = step_block_out,
    .decodes = true,
};

const struct op_code cuda_op_select = {
    .run = step_select,
    .load = load_with_tables,
    .out = {BE_AT(draft.g)},
    .takes = OP_BIT(OP_LOGITS),
};

const struct op_code cuda_op_chain = {
    .run = step_select,
    .load = load_chain,
    .takes = OP_BIT(OP_LOGITS),
};
