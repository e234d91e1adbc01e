/*
 * spec - two estimates decide, kept apart because they change for different reasons: what is accepted
 * depends on the text, what a row costs on the load. The second is the cost model's (scheduler/cost.h).
 *
 * The first: each drafted token is a trial, counted by source, by how long the match was and by its place in
 * the draft. A request starts from what all requests have seen (they weigh WEIGHT trials); its own trials
 * fade, so that an estimate follows the text from prose into a quotation within a few drafts.
 *
 * A source whose drafts get no row, or fail, REFUSED_MAX times in a row rests: it is not even asked for a while,
 * twice as long each time. After a rest it has a try of PROBE tokens: acceptance and cost are looked at again.
 */

#include "scheduler/spec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MAX 16u
#define WEIGHT 4.0F      /* trials that the estimate of all requests is worth to one */
#define FADE 0.9F        /* of a request's trials, at each new one */
#define FADE_ALL 0.998F  /* of everybody's */
#define SHARE_ALL 8.0F   /* trials that the prior is worth */
#define SURE 0.97F       /* no estimate is beyond it */
#define LEAST 0.02F      /* survival below which a draft is cut */
#define REFUSED_MAX 8u   /* drafts in a row before a source rests */
#define REST_MIN 16u     /* tokens */
#define REST_MAX 128u    /* tokens */
#define PROBE 2u         /* tokens */
#define PROBE_TURNS 16   /* all tries fall into one step in so many: the others stay undisturbed */
#define SLOW_MEMORY 0.9F /* of the running means of step times */

static const struct draft_source *const table[] = {
    &draft_prediction,
    &draft_suffix,
    &draft_recent,
    NULL,
};

int spec_init(struct spec *s, const struct spec_opts *opts) {
    const struct draft_source *const *source = opts->source ? opts->source : table;

    *s =
        (struct spec){.max_draft = opts->max_draft ? opts->max_draft : DEFAULT_MAX, .slow = {1, 1}};
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

static uint32_t level_of(uint32_t strength) {
    return strength <= 2 ? 0 : strength <= 5 ? 1 : strength <= 11 ? 2 : 3;
}

static uint32_t position_of(uint32_t i) {
    return i < 4 ? i : i < 8 ? 4 : 5;
}

/* The probability that token @i of a draft is right, given that those before are. */
static float estimate(const struct spec *s, const struct spec_request *q, uint32_t source,
                      uint32_t level, uint32_t i) {
    const struct spec_trials *all = &s->seen[source][level][position_of(i)];
    const struct spec_trials *own = &q->seen[source][level][position_of(i)];
    float prior = s->source[source]->prior;
    float common = (all->right + SHARE_ALL * prior) / (all->n + SHARE_ALL);

    return MIN((own->right + WEIGHT * common) / (own->n + WEIGHT), SURE);
}

static void count(struct spec_trials *t, float fade, bool right) {
    t->n = t->n * fade + 1;
    t->right = t->right * fade + (right ? 1 : 0);
}

static void rest(struct spec_request *q, uint32_t source, uint32_t n_out) {
    struct spec_rest *z = &q->rest[source];

    z->length = z->length ? MIN(2 * z->length, REST_MAX) : REST_MIN;
    z->until = n_out + z->length;
    z->refused = 0;
    z->probe = true;
}

static void fail(struct spec_request *q, uint32_t source, uint32_t n_out) {
    struct spec_rest *z = &q->rest[source];

    if (z->probe || ++z->refused >= REFUSED_MAX)
        rest(q, source, n_out);
}

/* ---- drafts ---- */

static struct spec_request *begin(struct spec *s, struct request *r, const struct draft_text *t) {
    if (r->spec)
        return r->spec;
    struct spec_request *q = r->spec = calloc(1, sizeof(*q));
    if (!q)
        return NULL;
    q->owner = s;
    for (uint32_t i = 0; i < s->n_sources; i++)
        if (s->source[i]->begin(&q->state[i], s->common[i], t) < 0)
            q->state[i] = NULL; /* no memory, no drafts */
    return q;
}

static struct draft_text text_of(const struct request *r) {
    return (struct draft_text){.tokens = r->tokens,
                               .n_prompt = r->n_prompt,
                               .n_tokens = r->n_tokens,
                               .prediction = r->prediction,
                               .n_prediction = r->n_prediction,
                               .share_key = r->share.key};
}

/* Asks source @i; keeps its draft if more of it is expected to be right than @best. Returns what is
 * expected of the one kept. */
static float ask(struct spec *s, struct spec_request *q, uint32_t i, const struct draft_text *t,
                 uint32_t max, float best) {
    int32_t draft[DRAFT_MAX];
    float survival[DRAFT_MAX], sum = 0, p = 1;
    uint32_t strength = 0, n, k;

    if (q->rest[i].probe)
        max = MIN(max, PROBE);
    n = s->source[i]->propose(q->state[i], t, draft, max, &strength);
    for (k = 0; k < n; k++) {
        p *= estimate(s, q, i, level_of(strength), k);
        if (p < LEAST && !q->rest[i].probe)
            break;
        survival[k] = p;
        sum += p;
    }
    if (k == 0 || sum <= best)
        return best;
    memcpy(q->draft, draft, k * sizeof(*draft));
    memcpy(q->survival, survival, k * sizeof(*survival));
    q->n_draft = k;
    q->source = i;
    q->level = level_of(strength);
    return sum;
}

void spec_propose(struct spec *s, struct request *r) {
    uint32_t n_out = request_n_out(r), left = r->max_tokens - r->n_tokens;
    struct draft_text t = text_of(r);
    float best = 0;

    if (r->spec)
        r->spec->n_draft = 0;
    if (s->n_sources == 0 || r->flags & SUBMIT_NO_SPECULATION || left < 2)
        return;
    struct spec_request *q = begin(s, r, &t);
    if (!q)
        return;
    for (uint32_t i = 0; i < s->n_sources; i++) {
        const struct spec_rest *z = &q->rest[i];

        if (!q->state[i] || n_out < z->until || (z->probe && s->turn % PROBE_TURNS != 0))
            continue;
        best = ask(s, q, i, &t, MIN(s->max_draft, left - 1), best);
    }
}

bool spec_probes(const struct request *r) {
    return r->spec->rest[r->spec->source].probe;
}

void spec_refused(struct request *r) {
    fail(r->spec, r->spec->source, request_n_out(r));
}

void spec_learn(struct spec *s, struct request *r, uint32_t n_drafted, uint32_t n_right,
                bool ended) {
    struct spec_request *q = r->spec;
    uint32_t i = q->source, n = n_right + (n_right < n_drafted && !ended);

    for (uint32_t k = 0; k < n; k++) {
        count(&q->seen[i][q->level][position_of(k)], FADE, k < n_right);
        count(&s->seen[i][q->level][position_of(k)], FADE_ALL, k < n_right);
    }
    if (n_right > 0)
        q->rest[i] = (struct spec_rest){0};
    else if (!ended)
        fail(q, i, request_n_out(r));
    r->n_drafted += n_drafted;
    r->n_accepted += n_right;
}

void spec_finish(struct spec *s, const struct request *r) {
    struct draft_text t = text_of(r);

    if (r->flags & SUBMIT_NO_SPECULATION || r->n_tokens <= r->n_prompt)
        return;
    for (uint32_t i = 0; i < s->n_sources; i++)
        if (s->source[i]->finish)
            s->source[i]->finish(s->common[i], &t);
}

void spec_time(struct spec *s, bool drafts, int64_t ns, int64_t expect_ns) {
    float ratio = (float)ns / (float)MAX(expect_ns, 1000);

    ratio = MIN(MAX(ratio, 0.25F), 4.0F);
    s->slow[drafts] = s->slow[drafts] * SLOW_MEMORY + ratio * (1 - SLOW_MEMORY);
}

float spec_slower(const struct spec *s) {
    return MIN(MAX(s->slow[1] / s->slow[0], 1.0F), 4.0F);
}
