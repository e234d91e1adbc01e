#include "scheduler/batch.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "scheduler/late.h"
#include "scheduler/picture.h"

int batch_init(struct batch *t, uint32_t max_rows, uint32_t max_seqs, uint32_t max_seq_pages,
               uint32_t n_vocab, bool windows) {
    size_t n_pages;

    *t = (struct batch){.max_rows = max_rows, .max_seqs = max_seqs, .n_words = (n_vocab + 31) / 32};
    if (size_mul(max_seqs, max_seq_pages, &n_pages))
        return -ENOMEM;
    t->item = calloc(max_seqs, sizeof(*t->item));
    t->token = calloc(max_rows, sizeof(*t->token));
    t->seq = calloc(max_seqs, sizeof(*t->seq));
    t->want = calloc(max_rows, sizeof(*t->want)); /* at most one per row */
    /* one for each sequence and one for each draft */
    t->param = calloc((size_t)max_seqs + max_rows, sizeof(*t->param));
    t->start = calloc((size_t)max_seqs + 1, sizeof(*t->start));
    t->page = calloc(n_pages, sizeof(*t->page));
    if (windows)
        t->window = calloc(n_pages, sizeof(*t->window));
    t->after = calloc(max_seqs, sizeof(*t->after));
    t->mask = calloc(max_rows, sizeof(*t->mask));
    if (!t->mask || (windows && !t->window) || !t->after || !t->item || !t->token || !t->seq ||
        !t->want || !t->param || !t->start || !t->page)
        return -ENOMEM;
    return 0;
}

void batch_deinit(struct batch *t) {
    free(t->item);
    free(t->token);
    free(t->seq);
    free(t->want);
    free(t->param);
    free(t->start);
    free(t->page);
    free(t->window);
    for (uint32_t i = 0; i < t->max_rows && t->mask; i++)
        free(t->mask[i]);
    free(t->mask);
    free(t->copy);
    free(t->after);
    *t = (struct batch){0};
}

void batch_begin(struct batch *t, uint64_t step) {
    assert(step > 0);
    t->b = (struct engine_batch){
        .step = step,
        .token = t->token,
        .seq = t->seq,
        .want = t->want,
        .param = t->param,
        .after = t->after,
    };
    t->b.table[KV_GLOBAL].start = t->start;
    t->b.table[KV_GLOBAL].page = t->page;
    t->b.table[KV_WINDOW].page = t->window;
    if (t->b.table[KV_WINDOW].page)
        t->b.table[KV_WINDOW].start = t->start;
    t->shape = (struct cost_shape){0};
    t->alone = t->drafts = t->prefills = t->replays = t->constrained = t->unsealed = false;
    t->n_masks = 0;
    t->start[0] = 0;
}

void batch_add_pages(struct batch *t, const struct kv_seq *seq, uint32_t most) {
    uint32_t n, at = t->start[t->b.n_seqs];
    const kv_page *page = kv_seq_pages(seq, &n);

    assert(t->b.n_seqs < t->max_seqs);
    n = MIN(n, most);
    memcpy(t->page + at, page, n * sizeof(*page));
    if (t->window)
        kv_seq_windows(seq, t->window + at);
    t->start[t->b.n_seqs + 1] = at + n;
}

/* Adds the parameters of @r after @n_draft drafts, with the tokens that the host knows. Returns
 * their index. */
static uint32_t add_param(struct batch *t, const struct request *r, uint32_t n_draft) {
    struct engine_param *p = &t->param[t->b.n_params];

    *p = r->sampling.param;
    p->tokens = r->tokens;
    p->n_tokens = r->n_tokens + n_draft;
    /* The masks of a constrained request exclude its banned tokens already. */
    p->n_bans =
        p->n_tokens + r->n_pending < r->min_tokens && !r->grammar.matcher ? r->sampling.n_bans : 0;
    assert(t->b.n_params < t->max_seqs + t->max_rows);
    return t->b.n_params++;
}

static void add_want(struct batch *t, struct engine_want w) {
    assert(t->b.n_wants < t->max_rows);
    t->want[t->b.n_wants++] = w;
}

static void add_sample(struct batch *t, const struct request *r, uint32_t row, uint32_t param,
                       uint32_t out_pos) {
    add_want(t, (struct engine_want){.row = row,
                                     .param = param,
                                     .out_pos = out_pos,
                                     .what = WANT_SAMPLE,
                                     .n_top = r->sampling.n_top,
                                     .logprob = (r->flags & SUBMIT_LOGPROBS) != 0,
                                     .no_digest = !(r->flags & SUBMIT_DIGESTS)});
}

/* Adds wants for hidden states to rows of a request that wants vectors. */
static void add_hidden(struct batch *t, struct batch_item *it, uint32_t row0) {
    struct request *r = it->request;
    uint32_t end = it->pos0 + it->n_rows, begin = r->n_prompt - 1, param = 0;

    if (r->flags & SUBMIT_POOL_CLS) {
        begin = 0;
        end = 1;
    }
    if (request_pools_all(r))
        begin = r->pool.n;
    uint32_t from = MAX(it->pos0, begin);
    it->want0 = t->b.n_wants;
    it->samples = it->pos0 + it->n_rows == r->n_prompt;
    if (from < end)
        param = add_param(t, r, 0);
    for (uint32_t pos = from; pos < end; pos++)
        add_want(t, (struct engine_want){
                        .row = row0 + pos - it->pos0, .param = param, .what = WANT_HIDDEN});
    it->n_wants = t->b.n_wants - it->want0;
}

/* Adds wants to rows [pos0, pos0 + n_rows): log probabilities of the prompt that are still missing,
 * and the next token where the rows reach the last known token, and after each draft. */
static void batch_add_wants(struct batch *t, struct batch_item *it, uint32_t row0) {
    struct request *r = it->request;
    uint32_t n = it->n_rows - it->n_draft, end = it->pos0 + n;
    uint32_t from = MAX(it->pos0, r->out.n_prompt_lp);

    it->want0 = t->b.n_wants;
    it->samples = end == r->n_tokens + r->n_pending;
    if (!it->samples && from >= MIN(end, r->out.want_prompt_lp)) {
        it->n_wants = 0;
        return;
    }
    uint32_t param = add_param(t, r, 0);
    for (uint32_t pos = from; pos < MIN(end, r->out.want_prompt_lp); pos++)
        add_want(t, (struct engine_want){.row = row0 + pos - it->pos0,
                                         .param = param,
                                         .what = WANT_PROMPT_LP,
                                         .n_top = r->sampling.n_prompt_top,
                                         .logprob = true});
    if (it->samples)
        add_sample(t, r, row0 + n - 1, param, end - r->n_prompt);
    for (uint32_t i = 1; i <= it->n_draft; i++)
        add_sample(t, r, row0 + n - 1 + i, add_param(t, r, i), end - r->n_prompt + i);
    it->n_wants = t->b.n_wants - it->want0;
}

void batch_add_pictures(struct batch *t, struct request *r, struct engine_seq *q, bool reads) {
    struct engine_picture *to = r->picture.shown + t->b.step % 2 * r->picture.n;
    uint32_t n = 0;

    for (; n < r->picture.n && r->picture.list[n].in.at < q->pos0 + q->n_rows; n++) {
        const struct submit_picture *p = &r->picture.list[n].in;
        const struct sched_picture *x = r->picture.list[n].held;

        to[n] = (struct engine_picture){.at = p->at,
                                        .n_rows = p->n_rows,
                                        .n_columns = p->n_columns,
                                        .n_lines = p->n_lines,
                                        .n_positions = p->n_positions};
        if (!reads || p->at + p->n_rows <= q->pos0)
            continue;
        assert(x && x->state == PICTURE_READY);
        to[n].rows = x->rows;
        to[n].width = t->picture_width;
    }
    q->n_pictures = n;
    q->picture = NULL;
    if (n > 0)
        q->picture = to;
}

void batch_add(struct batch *t, struct request *r, uint32_t n_rows, const int32_t *draft,
               uint32_t n_draft) {
    struct engine_batch *b = &t->b;
    uint32_t row0 = b->n_rows, pos0 = r->n_computed;
    struct batch_item *it = &t->item[b->n_seqs];
    bool fed = r->n_pending > 0;

    assert(b->n_seqs < t->max_seqs && n_rows <= t->max_rows - row0);
    assert(n_rows > n_draft && pos0 + n_rows <= r->n_tokens + r->n_pending + n_draft);
    assert(!fed || (n_rows == 1 && pos0 == r->n_tokens));
    assert(n_draft == 0 || (pos0 + n_rows == r->n_tokens + n_draft && r->cap >= pos0 + n_rows));
    if (n_draft > 0)
        memcpy(r->tokens + r->n_tokens, draft, n_draft * sizeof(*draft));
    batch_add_pages(t, r->seq, UINT32_MAX);
    if (fed)
        t->token[row0] = 0;
    else
        memcpy(t->token + row0, r->tokens + pos0, n_rows * sizeof(*t->token));
    t->seq[b->n_seqs] = (struct engine_seq){.row0 = row0,
                                            .n_rows = n_rows,
                                            .pos0 = pos0,
                                            .n_prompt = r->n_prompt,
                                            .state_slot = kv_seq_state(r->seq),
                                            .begins = r->begins,
                                            .n_draft = (uint16_t)n_draft,
                                            .feed = -1};
    if (fed)
        t->seq[b->n_seqs].feed = (int32_t)r->want;
    batch_add_pictures(t, r, &t->seq[b->n_seqs], true);
    *it = (struct batch_item){.request = r,
                              .pos0 = pos0,
                              .n_rows = n_rows,
                              .n_draft = n_draft,
                              .snapshot = KV_NO_SNAPSHOT,
                              .backup = KV_NO_SNAPSHOT};
    if (request_pools(r))
        add_hidden(t, it, row0);
    else
        batch_add_wants(t, it, row0);
    b->n_rows += n_rows;
    b->n_seqs++;
    t->drafts |= n_draft > 0;
    t->constrained |= request_is_masked(r);
    t->prefills |= n_rows > 1 + n_draft + r->draft.n_replay;
    t->replays |= r->draft.n_replay > 0;
    cost_add(&t->shape, pos0, n_rows);

    r->begins = false;
    r->n_computed += n_rows;
    r->draft.n_replay -= MIN(r->draft.n_replay, n_rows);
    r->n_in_flight++;
    r->n_pending += it->samples;
    r->want = it->want0 + it->n_wants - 1;
}

int batch_copy(struct batch *t, const struct engine_copy *copy, uint32_t n) {
    uint32_t all = t->b.n_before + n;

    if (all > t->cap_copies) {
        struct engine_copy *c = realloc(t->copy, all * sizeof(*c));

        if (!c)
            return -ENOMEM;
        t->copy = c;
        t->cap_copies = all;
    }
    if (n > 0)
        memcpy(t->copy + t->b.n_before, copy, n * sizeof(*copy));
    t->b.before = t->copy;
    t->b.n_before = all;
    return 0;
}

/* Masks are allocated at their first use and kept, because most steps need none. */
uint32_t *batch_mask(struct batch *t) {
    uint32_t **m = &t->mask[t->n_masks];

    assert(t->n_masks < t->max_rows); /* one for each want, and a row has at most one want */
    if (!*m)
        *m = malloc(t->n_words * sizeof(**m));
    if (!*m)
        return NULL;
    memset(*m, 0, t->n_words * sizeof(**m));
    t->n_masks++;
    return *m;
}

/* Takes the samples of @it. A draft is right if the row before it has sampled the same token.
 * Samples from the first late mask on are discarded. Returns as batch_handle(). */
static int batch_handle_samples(struct batch *t, struct batch_item *it, uint32_t row0,
                                const struct engine_out *out) {
    const int32_t *draft = t->token + row0 + it->n_rows - it->n_draft;
    struct request *r = it->request;
    uint32_t n = 1 + it->n_draft - it->n_late;

    assert(it->n_late <= 1 + it->n_draft);
    if (n == 0)
        return FINISH_NONE;
    int why = request_add(r, &out[0]);

    while (why == FINISH_NONE && it->n_right + 1 < n &&
           r->tokens[r->n_tokens - 1] == draft[it->n_right]) {
        it->n_right++;
        why = request_add(r, &out[it->n_right]);
    }
    /* The token that ends the request may have been a draft. */
    if (why > FINISH_NONE && it->n_right < it->n_draft &&
        r->tokens[r->n_tokens - 1] == draft[it->n_right])
        it->n_right++;
    return why;
}

/* Takes the hidden states of item @i, whose request wants vectors instead of tokens. Returns as
 * batch_handle(). */
static int handle_hidden(const struct batch *t, uint32_t i, const struct engine_out *out) {
    const struct batch_item *it = &t->item[i];
    struct request *r = it->request;

    for (uint32_t k = 0; k < it->n_wants; k++)
        request_add_hidden(r, it->pos0 + t->want[it->want0 + k].row - t->seq[i].row0,
                           out[k].vector);
    r->n_pending -= it->samples;
    if (it->samples)
        return FINISH_STOP;
    return FINISH_NONE;
}

int batch_handle(struct batch *t, uint32_t i, const struct engine_result *res) {
    struct batch_item *it = &t->item[i];
    const struct engine_out *out = res->out + it->want0;
    struct request *r = it->request;
    uint32_t n_lp = it->n_wants, lp_pos = 0, n_wrong = 0;
    int why = FINISH_NONE;

    assert(res->n_outs == t->b.n_wants);
    if (it->samples)
        n_lp -= 1 + it->n_draft;
    if (n_lp > 0)
        lp_pos = it->pos0 + t->want[it->want0].row - t->seq[i].row0;
    if (request_pools(r)) {
        why = handle_hidden(t, i, out);
        if (r->seq)
            kv_seq_commit(r->seq, request_keys(r), it->pos0 + it->n_rows);
        return why;
    }
    for (uint32_t k = 0; k < n_lp; k++)
        request_add_prompt_lp(r, lp_pos + k, &out[k]);
    if (it->samples) {
        assert(r->n_pending > 0);
        r->n_pending--;
        why = batch_handle_samples(t, it, t->seq[i].row0, &out[n_lp]);
        if (why < 0)
            return why;
        /* Positions after the last right draft are not valid. */
        n_wrong = it->n_draft - it->n_right;
        assert((it->n_draft == 0 && it->n_late == 0) || r->n_in_flight == 0);
        /* If no sample is left, the row of the last token is computed again. */
        if (it->n_late > it->n_draft) {
            late_set_row(r, false);
            n_wrong++;
        }
    }
    if (!r->seq)
        return why;
    /* The state has advanced over wrong drafts: all rows of the step are computed again. */
    if (n_wrong > 0 && it->backup != KV_NO_SNAPSHOT) {
        r->draft.n_replay = it->n_rows - n_wrong;
        n_wrong = it->n_rows;
    }
    kv_seq_commit(r->seq, request_keys(r), it->pos0 + it->n_rows - n_wrong);
    if (n_wrong > 0) {
        r->n_computed -= n_wrong;
        kv_seq_truncate(r->seq, r->n_computed);
    }
    return why;
}
