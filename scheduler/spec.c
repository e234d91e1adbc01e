/*
 * spec - chooses drafts by two estimates, which change for different reasons: acceptance depends on
 * the text, the price of a row on the load. The cost model has the price (scheduler/cost.h).
 *
 * Acceptance: each drafted token is a trial, counted by source and by its position in the draft;
 * old trials fade. A draft is at most twice as long as the accepted part of the request's last
 * draft, and a little more: it grows as long as it pays and shrinks at once.
 *
 * Neither estimate is trusted blindly. Now and then a step has no drafts, and tokens per time with
 * and without drafts are compared at about the same load. If drafts lose, they pause.
 *
 * A source whose drafts get no row or are all wrong SPEC_REFUSED_MAX times in a row rests, each
 * time twice as long. After a rest a probe of SPEC_PROBE tokens measures acceptance and cost again.
 */

#include "scheduler/spec.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buggify.h"
#include "grammar/constraint.h"
#include "scheduler/policy.h"

static const struct draft_source *const table[] = {
    &draft_forced, &draft_prediction, &draft_suffix, &draft_recent, &draft_model, &draft_mtp, NULL,
};

static_assert(DRAFT_SOURCES_MAX == MSG_DRAFT_SOURCES, "statistics are kept for each source");

int spec_init(struct spec *s, const struct spec_opts *opts) {
    const struct draft_source *const *source = opts->source ? opts->source : table;

    *s = (struct spec){.max_draft = opts->max_draft ? opts->max_draft : SPEC_MAX,
                       .no_sources = opts->no_sources,
                       .took = 1,
                       .slower = 1};
    s->max_draft = MIN(s->max_draft, DRAFT_MAX);
    for (; !opts->off && source[s->n_sources] && s->n_sources < DRAFT_SOURCES_MAX; s->n_sources++) {
        uint32_t i = s->n_sources;

        s->source[i] = source[i];
        if (source[i]->share && source[i]->share(&s->common[i]) < 0) {
            spec_deinit(s);
            return -ENOMEM;
        }
    }
    return 0;
}

void spec_deinit(struct spec *s) {
    for (uint32_t i = 0; i < s->n_sources; i++)
        if (s->common[i])
            s->source[i]->unshare(s->common[i]);
    *s = (struct spec){0};
}

struct spec_request *spec_request_free(struct spec_request *q) {
    if (!q)
        return NULL;
    for (uint32_t i = 0; i < q->owner->n_sources; i++)
        if (q->state[i])
            q->owner->source[i]->end(q->state[i]);
    free(q);
    return NULL;
}

/* ---- estimates ---- */

static uint32_t position_of(uint32_t i) {
    if (i < 4)
        return i;
    return i < 8 ? 4 : 5;
}

/*
 * Returns the probability that token @i of a draft is right, given that the tokens before it are. A
 * position without trials takes the estimate of the position before: long drafts would never be
 * tried if they were expected to fail. @before: the estimate for token @i - 1.
 */
static float estimate(const struct spec *s, uint32_t source, uint32_t i, float before) {
    const struct spec_trials *t = &s->seen[source][position_of(i)];

    return (t->right + SPEC_PRIOR_TRIALS * before) / (t->n + SPEC_PRIOR_TRIALS);
}

static void spec_count(struct spec_trials *t, bool right) {
    t->n = t->n * SPEC_FADE + 1;
    t->right = t->right * SPEC_FADE + (right ? 1 : 0);
}

static void rest(struct spec_request *q, uint32_t source, uint32_t n_out) {
    struct spec_rest *z = &q->rest[source];

    z->length = z->length ? MIN(2 * z->length, SPEC_REST_MAX) : SPEC_REST_MIN;
    z->until = n_out + z->length;
    z->refused = 0;
    z->probe = true;
}

static void spec_fail(struct spec_request *q, uint32_t source, uint32_t n_out) {
    struct spec_rest *z = &q->rest[source];

    if (z->probe || ++z->refused >= SPEC_REFUSED_MAX)
        rest(q, source, n_out);
}

/* ---- results of drafts ---- */

static struct spec_ledger *ledger_of(struct spec *s, uint32_t n_seqs) {
    uint32_t load = 31 - (uint32_t)__builtin_clz(MAX(n_seqs, 1));

    return &s->ledger[MIN(load, SPEC_LOADS - 1)];
}

static double spec_rate(const struct spec_ledger *l, bool drafts) {
    return l->tokens[drafts] / MAX(l->ns[drafts], 1);
}

/* Sets the next comparison with a step without drafts: the clearer the gain, the later. */
static void spec_compare(struct spec *s, struct spec_ledger *l) {
    bool clear = l->n[1] >= SPEC_ENOUGH && spec_rate(l, true) > SPEC_CLEAR * spec_rate(l, false);

    l->interval = clear ? MIN(2 * l->interval, SPEC_INTERVAL_MAX) : SPEC_INTERVAL_MIN;
    l->compare_at = s->turn + l->interval;
}

/* Pauses drafts if steps with drafts produce fewer tokens per time than steps without,
 * independently of the estimates. */
static void stop_losing(struct spec *s, struct spec_ledger *l) {
    if (l->n[0] == 0 || l->n[1] < SPEC_ENOUGH)
        return;
    if (spec_rate(l, true) < SPEC_LOSS * spec_rate(l, false)) {
        l->pause = MIN(MAX(2 * l->pause, SPEC_PAUSE_MIN), SPEC_PAUSE_MAX);
        l->paused_until = s->turn + l->pause;
        l->tokens[1] = l->ns[1] = 0;
        l->n[1] = 0;
    } else if (spec_rate(l, true) > SPEC_CLEAR * spec_rate(l, false)) {
        l->pause = 0;
    }
}

void spec_account(struct spec *s, uint32_t n_seqs, bool drafts, uint32_t n_tokens, int64_t ns,
                  int64_t expect_ns) {
    struct spec_ledger *l = ledger_of(s, n_seqs);
    float ratio = (float)ns / (float)MAX(expect_ns, 1000);

    ratio = MIN(MAX(ratio, 0.25F), 4.0F);
    if (drafts)
        s->slower = s->slower * SPEC_SLOW_MEMORY + ratio / s->took * (1 - SPEC_SLOW_MEMORY);
    else
        s->took = s->took * SPEC_SLOW_MEMORY + ratio * (1 - SPEC_SLOW_MEMORY);
    l->tokens[drafts] = l->tokens[drafts] * SPEC_LEDGER_MEMORY + n_tokens;
    l->ns[drafts] = l->ns[drafts] * SPEC_LEDGER_MEMORY + (double)ns;
    l->n[drafts]++;
    if (!drafts)
        spec_compare(s, l);
    stop_losing(s, l);
}

/* ---- drafts ---- */

static struct spec_request *spec_begin(struct spec *s, struct request *r,
                                       const struct draft_text *t) {
    if (r->draft.spec)
        return r->draft.spec;
    struct spec_request *q = r->draft.spec = calloc(1, sizeof(*q));
    if (!q)
        return NULL;
    q->owner = s;
    for (uint32_t i = 0; i < s->n_sources; i++)
        if (!(s->no_sources >> i & 1) && !BUGGIFY(draft_source_gone) &&
            s->source[i]->begin(&q->state[i], s->common[i], t) < 0)
            q->state[i] = NULL; /* out of memory: no drafts */
    return q;
}

static struct draft_text spec_text(const struct request *r) {
    return (struct draft_text){.tokens = request_keys(r),
                               .n_prompt = r->n_prompt,
                               .n_tokens = r->n_tokens,
                               .prediction = r->draft.prediction,
                               .n_prediction = r->draft.n_prediction,
                               .drafted = r->draft.drafted,
                               .matcher = r->grammar.matcher,
                               .tokenizer = r->sampling.tokenizer,
                               .isolation_key = r->share.key};
}

/* Returns how many tokens of the draft the constraint allows. */
static uint32_t cut_refused(struct constraint_state *matcher, const int32_t *draft, uint32_t n) {
    uint32_t fits = 0;

    while (fits < n && constraint_accept(matcher, draft[fits]) == 0)
        fits++;
    int e = constraint_rollback(matcher, fits);
    assert(e == 0);
    return fits;
}

/* Computes survival[k] of the first @n tokens of a draft of source @i. Returns their sum. */
static float survivals(const struct spec *s, uint32_t i, uint32_t n, float *survival) {
    float p = 1, each = s->source[i]->prior, sum = 0;

    for (uint32_t k = 0; k < n; k++) {
        each = estimate(s, i, k, each);
        p *= MIN(each, SPEC_SURE);
        survival[k] = p;
        sum += p;
    }
    return sum;
}

/* Returns how many tokens of the draft come before a row of a picture, which is no token. */
static uint32_t cut_pictures(const int32_t *draft, uint32_t n) {
    uint32_t i = 0;

    while (i < n && draft[i] >= 0)
        i++;
    return i;
}

/* Returns the most tokens that a draft of source @i may have. */
static uint32_t longest(const struct spec_request *q, uint32_t i, uint32_t max) {
    return MIN(max, q->rest[i].probe ? SPEC_PROBE : MAX(q->longest[i], SPEC_START));
}

/* Asks source @i, and keeps its draft if more tokens of it are expected to be right than @best.
 * Returns the expected tokens of the draft kept. */
static float spec_ask(struct spec *s, struct request *r, uint32_t i, const struct draft_text *t,
                      uint32_t max, float best) {
    struct spec_request *q = r->draft.spec;
    int32_t draft[DRAFT_MAX];
    float survival[DRAFT_MAX];
    uint32_t n = s->source[i]->propose(q->state[i], t, draft, longest(q, i, max));

    n = cut_pictures(draft, n);
    if (r->grammar.matcher)
        n = cut_refused(r->grammar.matcher, draft, n);
    float sum = survivals(s, i, n, survival);
    if (n == 0 || sum <= best)
        return best;
    memcpy(q->draft, draft, n * sizeof(*draft));
    memcpy(q->survival, survival, n * sizeof(*survival));
    q->n_draft = n;
    q->source = i;
    return sum;
}

void spec_begin_step(struct spec *s, uint64_t turn, uint32_t n_running) {
    const struct spec_ledger *l = ledger_of(s, n_running);

    s->turn = turn;
    s->quiet = turn < l->paused_until || (l->n[1] > 0 && turn >= l->compare_at);
    s->n_probes = turn % SPEC_PROBE_TURNS ? 0 : (n_running + SPEC_PROBE_PART - 1) / SPEC_PROBE_PART;
}

/* Returns whether source @i of @r may be asked now. */
static bool may_ask(const struct spec *s, const struct request *r, uint32_t i) {
    const struct spec_rest *z = &r->draft.spec->rest[i];

    return r->draft.spec->state[i] && request_n_out(r) >= z->until &&
           (!z->probe || s->n_probes > 0);
}

/* Returns the state of @r if @r may have drafts, of at most *max tokens; else NULL. */
static struct spec_request *open_for(struct spec *s, struct request *r, const struct draft_text *t,
                                     uint32_t *max) {
    uint32_t left = r->max_tokens - r->n_tokens;

    if (s->n_sources == 0 || s->quiet || left < 2 || r->flags & SUBMIT_NO_SPECULATION)
        return NULL;
    if (r->picture.n > 0 && request_keys(r)[r->n_tokens - 1] < 0)
        return NULL; /* no drafts after a row of a picture */
    *max = MIN(s->max_draft, left - 1);
    return spec_begin(s, r, t);
}

void spec_propose(struct spec *s, struct request *r) {
    struct draft_text t = spec_text(r);
    float best = 0;
    uint32_t max;

    if (r->draft.spec)
        r->draft.spec->n_draft = 0;
    struct spec_request *q = open_for(s, r, &t, &max);
    if (!q)
        return;
    for (uint32_t i = 0; i < s->n_sources; i++)
        if (may_ask(s, r, i))
            best = spec_ask(s, r, i, &t, max, best);
    s->n_probes -= q->n_draft > 0 && q->rest[q->source].probe;
}

float spec_offers(struct spec *s, struct request *r) {
    uint32_t n_probes = s->n_probes;
    float sum = 0;

    spec_propose(s, r);
    s->n_probes = n_probes; /* only an estimate: no probe is used up */
    for (uint32_t k = 0; r->draft.spec && k < r->draft.spec->n_draft; k++)
        sum += r->draft.spec->survival[k];
    return sum;
}

static uint32_t spec_index(const struct spec *s, const struct draft_source *source) {
    uint32_t i = 0;

    while (i < s->n_sources && s->source[i] != source)
        i++;
    return i;
}

uint32_t spec_expect(struct spec *s, struct request *r, const struct draft_source *source,
                     float survival[DRAFT_MAX], bool *probe) {
    uint32_t i = spec_index(s, source), max;
    struct draft_text t = spec_text(r);
    struct spec_request *q = open_for(s, r, &t, &max);

    if (!q || i == s->n_sources || !may_ask(s, r, i))
        return 0;
    *probe = q->rest[i].probe;
    uint32_t n = longest(q, i, max);
    survivals(s, i, n, survival);
    return n;
}

void spec_probe(struct spec *s, struct request *r, const struct draft_source *source) {
    assert(s->n_probes > 0);
    r->draft.spec->rest[spec_index(s, source)].probe = true;
}

bool spec_probes(const struct request *r) {
    return r->draft.spec->rest[r->draft.spec->source].probe;
}

void spec_refused(struct request *r) {
    spec_fail(r->draft.spec, r->draft.spec->source, request_n_out(r));
}

void spec_learn(struct spec *s, struct request *r, uint32_t n_drafted, uint32_t n_right,
                bool ended) {
    struct spec_request *q = r->draft.spec;
    uint32_t i = q->source, n = n_right + (n_right < n_drafted && !ended);

    assert(i < s->n_sources && n_right <= n_drafted && n_drafted <= DRAFT_MAX);
    for (uint32_t k = 0; k < n; k++)
        spec_count(&s->seen[i][position_of(k)], k < n_right);
    q->longest[i] = MIN(MAX(2 * n_right + SPEC_START, q->longest[i] / 2), DRAFT_MAX);
    if (n_right > 0)
        q->rest[i] = (struct spec_rest){0};
    else if (!ended)
        spec_fail(q, i, request_n_out(r));
    r->draft.n_drafted += n_drafted;
    r->draft.n_accepted += n_right;
    if (s->source[i] == &draft_prediction) {
        r->draft.n_predicted += n_drafted;
        r->draft.n_predicted_accepted += n_right;
    }
}

void spec_finish(struct spec *s, const struct request *r) {
    struct draft_text t = spec_text(r);

    if (r->flags & SUBMIT_NO_SPECULATION || r->n_tokens <= r->n_prompt)
        return;
    for (uint32_t i = 0; i < s->n_sources; i++)
        if (s->source[i]->finish)
            s->source[i]->finish(s->common[i], &t);
}

float spec_slower(const struct spec *s) {
    return MIN(MAX(s->slower, 1.0F), 4.0F);
}
