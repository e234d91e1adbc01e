/*
 * drafter - runs the draft model or the model's own block. docs/design/speculation.md describes
 * when and for which requests.
 *
 * Before a step the small model computes, for all chosen requests in one batch, the tokens that it
 * lacks and the first drafted token; then one row each for every further one. It samples a drafted
 * token with the request's own parameters, seed and position, so with the same noise as the large
 * model. Rejected tokens stay in its pages until the next run, which begins after the common part.
 * Only tokens of the request are committed, so a drafted token is never shared.
 *
 * The block of the large model has its keys in the request's own pages, where steps of that model
 * have computed them up to the last token but one, so it has nothing to catch up with. Pages for
 * its drafts are taken for the run only: the step that checks the draft computes their keys again.
 * Of several blocks (engine_info.draft_passes) each makes one token of a draft.
 * A model's assistant (engine_info.borrows) runs in the same way but reads the keys of the model
 * itself, so it takes no pages and leaves no keys out. A block drafter (engine_info.n_block) runs
 * once for all tokens of a draft: the last token's row, then masks; their keys lie behind those of
 * the model's positions, and those of its own are never left out.
 */

#include "scheduler/drafter.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/buggify.h"
#include "base/try.h"
#include "scheduler/batch.h"
#include "scheduler/constrain.h"
#include "scheduler/late.h"
#include "scheduler/plan.h"
#include "scheduler/policy.h"
#include "scheduler/spec.h"

struct drafter {
    struct drafter_opts opts;
    const struct engine_info *info;
    struct kv_pager *pager;
    struct cost cost;
    const struct draft_source *source;
    /* last step of its engine */
    uint64_t *step, own_step;
    uint32_t n_chosen;
    /* step from which on one request is probed although drafts do not pay */
    uint64_t probe_at;
    /* steps between the last two probes; 0: drafts pay */
    uint32_t probe_gap;
    /* Scratch of drafter_choose(): [max_seqs]. */
    struct candidate {
        struct request *request;
        float survival[DRAFT_MAX];
        uint32_t max;
        bool probe;
    } * candidate;
    /* items want one token or none */
    struct batch batch;
};

static uint32_t max_seq_pages(const struct drafter *d) {
    uint32_t t = d->info->page_tokens;

    return MIN(d->info->n_pages, (d->info->max_context + t - 1) / t);
}

static int drafter_init(struct drafter *d) {
    const struct engine_info *i = d->info;
    struct kv_opts o = {
        .n_pages = i->n_pages,
        .page_tokens = i->page_tokens,
        .max_seqs = d->opts.max_seqs,
        .max_seq_tokens = max_seq_pages(d) * i->page_tokens,
    };
    int e = batch_init(&d->batch, d->opts.max_rows, d->opts.max_seqs, max_seq_pages(d),
                       MAX(i->n_vocab, d->opts.n_vocab), i->n_windows > 0);

    memcpy(o.fingerprint, i->fingerprint, sizeof(o.fingerprint));
    d->candidate = calloc(d->opts.max_seqs, sizeof(*d->candidate));
    if (e < 0 || !d->candidate)
        return -ENOMEM;
    return d->opts.block ? 0 : kv_pager_new(&d->pager, &o);
}

int drafter_new(struct drafter **out, const struct drafter_opts *opts) {
    struct drafter *d = calloc(1, sizeof(*d));

    if (!d)
        return -ENOMEM;
    d->opts = *opts;
    d->info = engine_info(opts->engine);
    d->source = opts->block ? &draft_mtp : &draft_model;
    d->step = opts->block ? opts->step : &d->own_step;
    cost_init(&d->cost);
    int e = drafter_init(d);
    if (e < 0) {
        drafter_free(d);
        return e;
    }
    *out = d;
    return 0;
}

struct drafter *drafter_free(struct drafter *d) {
    if (!d)
        return NULL;
    kv_pager_free(d->pager);
    free(d->candidate);
    batch_deinit(&d->batch);
    free(d);
    return NULL;
}

void drafter_drop(struct request *r) {
    if (!r->draft.drafter)
        return;
    r->draft.drafter->kv = kv_seq_free(r->draft.drafter->kv);
    r->draft.drafter->n_computed = r->draft.drafter->drafted.n = 0;
}

const struct kv_pager *drafter_pager(const struct drafter *d) {
    return d->pager;
}

void drafter_forget(struct request *r) {
    drafter_drop(r);
    free(r->draft.drafter);
    r->draft.drafter = NULL;
    r->draft.drafted = NULL;
}

/* ---- choice of requests and lengths ---- */

/* Returns whether the drafter can draft for @r with @n tokens more. The block continues from the
 * hidden state that the step of the last position left in the request's slot; where that position
 * was found in shared pages, the slot has none of this request. */
static bool drafter_fits(const struct drafter *d, const struct request *r, uint32_t n) {
    uint32_t room = MIN(max_seq_pages(d) * d->info->page_tokens, d->info->max_context);

    if (d->opts.block && !d->info->n_block && r->n_computed <= r->n_found)
        return false;
    return r->n_tokens + n <= room && !(r->flags & SUBMIT_NO_SPECULATION) && !request_pools(r) &&
           !r->alone;
}

static bool decodes(const struct request *r) {
    return r->n_tokens + r->n_pending - r->n_computed == 1 && !request_is_last(r) && !late_waits(r);
}

/* Returns the expected time of a step of the small model; before the first one, that of the large
 * model scaled by size. */
static double small_ns(const struct drafter *d, const struct plan *p, const struct cost_shape *s) {
    if (d->cost.n_seen > 0)
        return (double)cost_expect_ns(&d->cost, s);
    return (double)cost_expect_ns(p->cost, s) * (double)d->opts.size;
}

/* Returns the expected tokens per ns of both models' time when every candidate gets up to @k
 * tokens. @decode: shape of the decode step. */
static double drafter_rate(const struct drafter *d, uint32_t n, uint32_t k, const struct plan *p,
                           const struct cost_shape *decode) {
    struct cost_shape small = {0};
    double right = 0;
    uint32_t n_drafts = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct candidate *c = &d->candidate[i];
        uint32_t own = MIN(k, c->max);

        for (uint32_t j = 0; j < own; j++)
            right += (double)c->survival[j];
        n_drafts += own;
        cost_add(&small, c->request->n_tokens - 1, MAX(d->info->n_block, 1));
    }
    double ns = plan_decode_ns(p, decode, n_drafts, right);
    uint32_t n_runs = d->info->n_block ? MIN(k, 1) : k;
    return (decode->rows + right) / (ns + n_runs * small_ns(d, p, &small));
}

/* Returns the best number of tokens for all candidates, or 0. */
static uint32_t best_length(const struct drafter *d, uint32_t n, const struct plan *p,
                            const struct cost_shape *decode) {
    double without = drafter_rate(d, n, 0, p, decode), best = without * DRAFTER_GAIN;
    uint32_t length = 0;

    for (uint32_t k = 1; k <= DRAFT_MAX; k++) {
        double q = drafter_rate(d, n, k, p, decode);

        if (q > best) {
            best = q;
            length = k;
        }
    }
    return length;
}

/* Returns the most tokens of a draft: the tokens of a block drafter, or one for each of several
 * blocks. */
static uint32_t most_drafts(const struct engine_info *i) {
    if (i->n_block)
        return i->n_block - i->first_draft;
    return i->draft_passes > 1 ? i->draft_passes : DRAFT_MAX;
}

/* Puts the requests for which the drafter may draft into d->candidate. Returns their number.
 * @decode: shape of the large model's decode step. */
static uint32_t find_candidates(struct drafter *d, struct spec *spec, const struct list *running,
                                struct cost_shape *decode) {
    uint32_t n = 0;

    LIST_FOREACH_ENTRY(r, running, struct request, queued.link) {
        struct candidate *c = &d->candidate[n];

        if (r->draft.drafter)
            r->draft.drafter->n_asked = 0;
        if (!decodes(r) || n == d->opts.max_seqs)
            continue;
        cost_add(decode, r->n_tokens - 1, 1);
        if (!r->draft.drafter)
            r->draft.drafter = calloc(1, sizeof(*r->draft.drafter));
        if (!r->draft.drafter) /* out of memory: no drafts */
            continue;
        r->draft.drafted = &r->draft.drafter->drafted;
        r->draft.drafter->drafted.by = d->source;
        if (!drafter_fits(d, r, MAX(DRAFT_MAX + 1, d->info->n_block)) ||
            spec_offers(spec, r) >= DRAFTER_ENOUGH)
            continue;
        c->max = spec_expect(spec, r, d->source, c->survival, &c->probe);
        c->max = MIN(c->max, most_drafts(d->info));
        c->request = r;
        n += c->max > 0;
    }
    return n;
}

/* Returns the one of @n candidates that is probed although drafts do not pay, or NULL. Probes
 * measure cost and acceptance again, the less often the longer drafts have not paid; a candidate
 * after a rest goes first. */
static struct candidate *drafter_probe(struct drafter *d, struct spec *spec, uint32_t n) {
    struct candidate *c = &d->candidate[spec->turn % n];

    if (spec->turn < d->probe_at || spec->n_probes == 0)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        c = d->candidate[i].probe ? &d->candidate[i] : c;
    d->probe_gap = MIN(MAX(2 * d->probe_gap, SPEC_PROBE_TURNS), DRAFTER_PROBE_MAX);
    d->probe_at = spec->turn + d->probe_gap;
    spec_probe(spec, c->request, d->source);
    return c;
}

uint32_t drafter_choose(struct drafter *d, struct spec *spec, const struct plan *p,
                        const struct list *running) {
    struct cost_shape decode = {0};
    uint32_t n = find_candidates(d, spec, running, &decode);
    uint32_t k = 0;
    if (n > 0)
        k = d->opts.force ? d->opts.force : best_length(d, n, p, &decode);

    struct candidate *tried = k == 0 && n > 0 ? drafter_probe(d, spec, n) : NULL;
    d->n_chosen = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct candidate *c = &d->candidate[i];

        c->request->draft.drafter->n_asked = MIN(c == tried ? SPEC_PROBE : k, c->max);
        d->n_chosen += c->request->draft.drafter->n_asked > 0;
    }
    if (k > 0) {
        d->probe_gap /= 2;
        d->probe_at = spec->turn;
    }
    return d->n_chosen;
}

bool drafter_rests(const struct drafter *d, uint64_t turn) {
    return d->opts.block && !d->info->borrows && !d->info->n_block &&
           (BUGGIFY(draft_holes) ||
            (d->probe_gap > 0 && !d->opts.force && turn + DRAFTER_KEYS_AHEAD < d->probe_at));
}

/* ---- one batch ---- */

/* Begins the batch of draft @n. */
static void begin_batch(struct drafter *d, uint32_t n) {
    batch_begin(&d->batch, *d->step + 1);
    d->batch.b.model = 0;
    if (d->opts.block)
        d->batch.b.model = (uint16_t)(d->info->draft_passes > 1 ? 1 + n : 1);
}

static struct kv_seq *pages_of(const struct drafter *d, const struct request *r) {
    return d->opts.block ? r->seq : r->draft.drafter->kv;
}

/* Adds rows of positions [from, to) of @r: tokens, then drafted ones. */
static void drafter_add_rows(struct drafter *d, struct request *r, uint32_t from, uint32_t to) {
    struct drafter_seq *q = r->draft.drafter;
    struct batch *t = &d->batch;
    struct engine_batch *b = &t->b;
    uint32_t n_ahead = d->info->borrows ? from - (r->n_tokens - 1) : 0;

    assert(from < to && b->n_rows + to - from <= t->max_rows);
    batch_add_pages(t, pages_of(d, r), (to + d->info->page_tokens - 1) / d->info->page_tokens);
    for (uint32_t i = from; i < to; i++) {
        int32_t *token = &t->token[b->n_rows + i - from];

        if (i < r->n_tokens)
            *token = r->tokens[i];
        else
            *token = d->info->n_block ? d->info->mask_token : q->drafted.token[i - r->n_tokens];
    }
    t->item[b->n_seqs] = (struct batch_item){.request = r};
    t->seq[b->n_seqs++] = (struct engine_seq){
        .row0 = b->n_rows,
        .n_rows = to - from,
        .pos0 = from - n_ahead,
        .n_prompt = r->n_prompt,
        .n_ahead = (uint16_t)n_ahead,
        .state_slot = kv_seq_state(pages_of(d, r)),
        .n_draft = (uint16_t)(to - MIN(MAX(from, r->n_tokens), to)),
        .feed = -1,
    };
    if (d->opts.block)
        batch_add_pictures(t, r, &t->seq[b->n_seqs - 1], false);
    b->n_rows += to - from;
    cost_add(&t->shape, from, to - from);
    q->n_computed = to;
}

/* Adds wants for @n tokens of @r, the last sequence of the batch: one for the token after its last
 * row, or those of a block. Drafted tokens are in r->tokens for the penalties. */
static void drafter_add_wants(struct drafter *d, struct request *r, uint32_t n) {
    struct drafter_seq *q = r->draft.drafter;
    struct batch *t = &d->batch;
    struct engine_param *p = &t->param[t->b.n_params];
    struct batch_item *it = &t->item[t->b.n_seqs - 1];
    uint32_t n_tokens = r->n_tokens + q->drafted.n;

    assert(it->request == r && it->n_wants == 0);
    *p = r->sampling.param;
    p->tokens = r->tokens;
    p->n_tokens = n_tokens;
    p->n_bans = n_tokens < r->min_tokens && !r->grammar.matcher ? r->sampling.n_bans : 0;
    for (uint32_t i = 0; i < p->n_bias; i++)
        if ((uint32_t)p->bias[i].token >= d->info->n_vocab)
            p->n_bias = 0;
    for (uint32_t i = 0; i < p->n_bans; i++)
        if ((uint32_t)p->bans[i] >= d->info->n_vocab)
            p->n_bans = 0;
    it->want0 = t->b.n_wants;
    it->n_wants = n;
    for (uint32_t i = 0; i < n; i++)
        t->want[t->b.n_wants++] = (struct engine_want){
            .row = d->info->n_block ? t->seq[t->b.n_seqs - 1].row0 + d->info->first_draft + i
                                    : t->b.n_rows - 1,
            .param = t->b.n_params,
            .out_pos = n_tokens + i - r->n_prompt,
            .what = WANT_SAMPLE,
            .no_digest = true,
        };
    t->b.n_params++;
}

/* Masks tokens that the constraint of @it's request forbids and the large model would refuse; for a
 * block drafter only for the first draft, because all drafts are computed at once. If that takes
 * long or memory is short, the draft ends or is not masked. Returns 0 or -EIO. */
static int mask_want(struct drafter *d, const struct batch_item *it) {
    struct request *r = it->request;
    const struct draft_tokens *g = &r->draft.drafter->drafted;
    uint32_t *bits = it->n_wants > 0 && request_is_masked(r) ? batch_mask(&d->batch) : NULL;
    int e = bits ? constrain_draft(r, g->token, g->n, bits) : 0;

    if (e == -EAGAIN)
        r->draft.drafter->n_asked = g->n;
    return e <= 0 ? 0 : engine_mask(d->opts.engine, d->batch.b.step, it->want0, bits);
}

/* Runs the batch and takes the drafted tokens. Returns 0 or -EIO. */
static int run_batch(struct drafter *d) {
    int64_t begin = clock_now(d->opts.clock);
    const struct batch *t = &d->batch;
    struct engine_result res;

    TRY(engine_launch(d->opts.engine, &t->b));
    for (uint32_t i = 0; i < t->b.n_seqs; i++)
        TRY(mask_want(d, &t->item[i]));
    TRY(engine_seal(d->opts.engine, t->b.step));
    TRY(engine_wait(d->opts.engine, t->b.step, &res));
    assert(res.n_outs == t->b.n_wants);
    *d->step = t->b.step;
    cost_learn(&d->cost, &t->shape, clock_now(d->opts.clock) - begin);
    for (uint32_t i = 0; i < t->b.n_seqs; i++) {
        const struct batch_item *it = &t->item[i];
        struct request *r = it->request;
        struct draft_tokens *g = &r->draft.drafter->drafted;

        for (uint32_t k = 0; k < it->n_wants && g->n < r->draft.drafter->n_asked; k++) {
            assert(g->n < DRAFT_MAX && r->n_tokens + g->n < r->cap);
            g->token[g->n] = res.out[it->want0 + k].token;
            r->tokens[r->n_tokens + g->n++] = res.out[it->want0 + k].token;
        }
    }
    return 0;
}

/* ---- catching up ---- */

/* Takes back rejected drafts and commits accepted positions. Leaves the row of the last token,
 * since the next draft begins with it. */
static void drafter_settle(struct drafter_seq *q, const struct request *r) {
    struct draft_tokens *g = &q->drafted;
    uint32_t right = MIN(q->n_computed, g->at), end = MIN(q->n_computed, r->n_tokens - 1);

    if (!q->kv)
        return;
    while (right < end && r->tokens[right] == g->token[right - g->at])
        right++;
    right = MIN(right, end);
    assert(right < r->n_tokens && right <= q->n_computed);
    kv_seq_truncate(q->kv, right);
    kv_seq_commit(q->kv, r->tokens, right);
    q->n_computed = right;
    g->n = 0;
    g->at = r->n_tokens;
}

/* Attaches cached pages and makes room for @n positions. Returns 0 or KV_FULL. */
static int drafter_make_room(struct drafter *d, struct drafter_seq *q, const struct request *r,
                             uint32_t n) {
    if (!q->kv) {
        if (BUGGIFY(draft_no_pages) || kv_seq_new(&q->kv, d->pager, &r->share) < 0)
            return KV_FULL;
        q->n_computed = kv_seq_attach(q->kv, r->tokens, r->n_tokens - 1);
        q->drafted.at = r->n_tokens;
    }
    return kv_seq_grow(q->kv, n);
}

static bool knows_tokens(const struct drafter *d, const struct request *r, uint32_t from) {
    for (uint32_t i = from; i < r->n_tokens; i++)
        if ((uint32_t)r->tokens[i] >= d->info->n_vocab)
            return false;
    return true;
}

/* Returns the rows that may be computed for requests that must catch up. */
static uint32_t catch_up_rows(const struct drafter *d) {
    uint32_t high = MIN(d->opts.max_rows, cost_trusted_rows(&d->cost)), low = 0;

    while (low < high) {
        struct cost_shape s = {0};
        uint32_t n = low + (high - low + 1) / 2;

        cost_add(&s, 0, n);
        if (cost_bound_ns(&d->cost, &s) <= d->opts.catch_up_ns)
            low = n;
        else
            high = n - 1;
    }
    return low;
}

/* Takes pages for the drafts of the block if many more are available, so that no other request
 * lacks one and few cached prefixes are evicted. Returns whether it did. */
static bool acquire_pages(const struct drafter *d, struct request *r, uint32_t n_positions) {
    uint32_t t = d->info->page_tokens, n_pages;

    if (d->info->borrows)
        return true;
    kv_seq_pages(r->seq, &n_pages);
    uint32_t need = (n_positions + t - 1) / t;
    return (need <= n_pages ||
            kv_pager_available(d->opts.block) >= need - n_pages + d->opts.max_seqs) &&
           kv_seq_grow(r->seq, n_positions) != KV_FULL;
}

/* Adds the row of the last token of @r for the model's own block, if it may draft, or all rows of a
 * block. Returns the rows added. */
static uint32_t drafter_add_own(struct drafter *d, struct request *r, uint32_t most) {
    struct drafter_seq *q = r->draft.drafter;
    uint32_t n_rows = MAX(d->info->n_block, 1), from = r->n_tokens - 1;
    uint32_t end = from + MAX(q->n_asked, d->info->n_block);

    assert(r->n_computed == r->n_tokens - 1 && r->n_in_flight == 0);
    q->drafted.n = 0;
    q->drafted.at = r->n_tokens;
    if (most < n_rows || !acquire_pages(d, r, end)) {
        q->n_asked = 0;
        return 0;
    }
    drafter_add_rows(d, r, from, from + n_rows);
    drafter_add_wants(d, r, d->info->n_block ? q->n_asked : 1);
    return n_rows;
}

/* Adds at most @most missing rows of @r, and asks for a drafted token if no more are missing.
 * Returns the rows added. */
static uint32_t add_request(struct drafter *d, struct request *r, uint32_t most) {
    struct drafter_seq *q = r->draft.drafter;

    if (d->opts.block)
        return drafter_add_own(d, r, most);
    drafter_settle(q, r);
    if (most == 0 || !knows_tokens(d, r, q->n_computed) ||
        drafter_make_room(d, q, r, r->n_tokens + q->n_asked) == KV_FULL) {
        q->n_asked = 0;
        return 0;
    }
    uint32_t from = q->n_computed, to = MIN(r->n_tokens, from + most);
    drafter_add_rows(d, r, from, to);
    if (to == r->n_tokens) {
        drafter_add_wants(d, r, 1);
    } else {
        q->n_asked = 0;
        d->probe_at = 0; /* a request that catches up has not been probed yet */
    }
    return to - from;
}

/* Runs the first batch: missing rows of the chosen requests, and a drafted token for each complete
 * one. A request that lacks many rows catches up in several steps; one without memory gets no
 * draft. */
static int first(struct drafter *d, const struct list *running) {
    uint32_t left = MAX(catch_up_rows(d), DRAFTER_CATCH_UP);

    begin_batch(d, 0);
    LIST_FOREACH_ENTRY(r, running, struct request, queued.link) {
        if (!r->draft.drafter || r->draft.drafter->n_asked == 0)
            continue;
        if (BUGGIFY(draft_no_memory) || request_reserve(r, DRAFT_MAX) < 0) {
            r->draft.drafter->n_asked = 0;
            continue;
        }
        uint32_t n = add_request(d, r,
                                 MIN(MAX(left, MAX(DRAFTER_FEW, d->info->n_block)),
                                     d->opts.max_rows - d->batch.b.n_rows));
        left -= MIN(n, left);
    }
    return d->batch.b.n_rows > 0 ? run_batch(d) : 0;
}

/* Runs the batch of the drafted tokens after the first @n. */
static int drafter_next(struct drafter *d, const struct list *running, uint32_t n) {
    begin_batch(d, n);
    LIST_FOREACH_ENTRY(r, running, struct request, queued.link) {
        struct drafter_seq *q = r->draft.drafter;

        if (!q || q->n_asked <= n || q->drafted.n != n ||
            (uint32_t)q->drafted.token[n - 1] >= d->info->n_vocab)
            continue;
        drafter_add_rows(d, r, r->n_tokens + n - 1, r->n_tokens + n);
        drafter_add_wants(d, r, 1);
    }
    return d->batch.b.n_rows > 0 ? run_batch(d) : 0;
}

/* Frees the pages that were taken for the run. */
static void drafter_release_pages(const struct drafter *d, const struct list *running) {
    if (!d->opts.block || d->info->borrows)
        return;
    LIST_FOREACH_ENTRY(r, running, struct request, queued.link) {
        if (r->draft.drafter && r->draft.drafter->drafted.at == r->n_tokens)
            kv_seq_truncate(r->seq, r->n_computed);
    }
}

int64_t drafter_run(struct drafter *d, const struct list *running) {
    int64_t begin = clock_now(d->opts.clock);
    int e = first(d, running);

    for (uint32_t n = 1; e == 0 && n < DRAFT_MAX && !d->info->n_block && !BUGGIFY(draft_cut); n++)
        e = drafter_next(d, running, n);
    drafter_release_pages(d, running);
    TRY(e);
    return clock_now(d->opts.clock) - begin;
}
