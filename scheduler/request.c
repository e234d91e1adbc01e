#include "scheduler/request.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "grammar/constraint.h"
#include "kvpager/media.h"
#include "scheduler/allowed.h"
#include "scheduler/constraints.h"
#include "scheduler/draft/draft.h"
#include "scheduler/view.h"
#include "text/stops.h"
#include "text/tokenizer.h"

#define GROW_MIN 64u /* tokens; keeps request.retired valid long enough, see request_reserve() */

static_assert(STOPS_MAX >= SUBMIT_STOPS_MAX, "every stop string has its place");
static_assert(GROW_MIN > DRAFT_MAX + 1, "a step brings fewer tokens");
static_assert(ENGINE_TOP_MAX >= SUBMIT_TOP_MAX, "top log probabilities");

void request_set_state(struct request *r, enum request_state state) {
    static const bool legal[3][3] = {
        [REQUEST_WAITING] = {[REQUEST_RUNNING] = true, [REQUEST_DONE] = true},
        [REQUEST_RUNNING] = {[REQUEST_WAITING] = true, [REQUEST_DONE] = true},
    };

    assert(legal[r->state][state]);
    r->state = state;
}

void request_note_pending(struct request *r, struct list *pending) {
    assert(!r->acked.end);
    if (list_empty(&r->pending))
        list_push_back(pending, &r->pending);
}

void request_finish(struct request *r, enum finish_reason why) {
    assert(!r->seq && why != FINISH_NONE);
    request_set_state(r, REQUEST_DONE);
    r->end.finish = why;
}

/* ---- checks and parameters ---- */

static int check_ids(const struct sched_view *v, const int32_t *id, uint32_t n, const char *what,
                     struct err *err) {
    for (uint32_t i = 0; i < n; i++)
        if (id[i] < 0 || (uint32_t)id[i] >= v->info->n_vocab)
            return err_set(err, 400, what,
                           "Token id %d in '%s' is not in the vocabulary (0 to %u).", id[i], what,
                           v->info->n_vocab - 1);
    return 0;
}

/* Checks that @m fits the context and the pool. Returns 0, or -EINVAL with @err. */
static int request_check_length(const struct submit *m, const struct sched_view *v,
                                struct err *err) {
    if (m->n_prompt == 0 || m->n_tokens < m->n_prompt)
        return err_set(err, 400, "messages", "The prompt is empty.");
    if (m->n_prompt >= v->info->max_context)
        return err_set_code(
            err, 400, "context_length_exceeded", "messages",
            "This model's maximum context length is %u tokens. However, your prompt "
            "has %u tokens. Please reduce the length of the prompt.",
            v->info->max_context, m->n_prompt);
    if (m->n_prompt > v->n_slots)
        return err_set_code(err, 400, "context_length_exceeded", "messages",
                            "This server's KV cache holds %u tokens. However, your prompt has %u "
                            "tokens. Please reduce the length of the prompt.",
                            v->n_slots, m->n_prompt);
    return 0;
}

static int request_check_pictures(const struct submit *m, const struct sched_view *v,
                                  struct err *err) {
    if (m->n_pictures > 0 && v->info->picture_width == 0)
        return err_set(err, 400, "messages",
                       "This model takes no pictures. Start it with a projector file (--mmproj).");
    for (uint32_t i = 0; i < m->n_pictures && v->info->two_way; i++)
        if (m->pictures[i].n_rows > v->max_rows - MIN(v->max_rows, v->max_seqs))
            return err_set(err, 400, "messages",
                           "Picture %u has %u tokens, and this model needs all of them in one step "
                           "of %u (max-batch-rows) beside %u others (max-seqs).",
                           i + 1, m->pictures[i].n_rows, v->max_rows, v->max_seqs);
    return 0;
}

static int check_submit(const struct submit *m, const struct sched_view *v, struct err *err) {
    TRY(request_check_length(m, v, err));
    TRY(params_check(&m->sampling, err));
    TRY(check_ids(v, m->tokens, m->n_tokens, "prompt", err));
    TRY(request_check_pictures(m, v, err));
    TRY(check_ids(v, m->stop_ids, m->n_stop_ids, "stop_token_ids", err));
    if (m->n_bias > REQUEST_LIST_MAX)
        return err_set(err, 400, "logit_bias", "'logit_bias' has more than %u entries.",
                       REQUEST_LIST_MAX);
    if (m->n_stop_ids > REQUEST_LIST_MAX)
        return err_set(err, 400, "stop_token_ids", "'stop_token_ids' has more than %u entries.",
                       REQUEST_LIST_MAX);
    for (uint32_t i = 0; i < m->n_bias; i++)
        if (check_ids(v, &m->bias[i].token, 1, "logit_bias", err) < 0)
            return -EINVAL;
    for (uint32_t i = 0; i < m->n_stops; i++)
        if (m->stops[i].len == 0 || m->stops[i].len > STOPS_LEN_MAX)
            return err_set(err, 400, "stop", "A stop string must have 1 to %u bytes.",
                           STOPS_LEN_MAX);
    uint16_t pool = m->flags & SUBMIT_POOLS;
    if (pool && !v->info->hidden)
        return err_set(
            err, 400, NULL,
            "This server's backend cannot compute embeddings. Run weftd with --backend cpu.");
    if (pool && (m->n_tokens != m->n_prompt || (pool & (pool - 1)) != 0))
        return err_set(err, 400, NULL,
                       "An embedding needs a prompt without output, and one kind of pooling.");
    if (pool & SUBMIT_POOL_NONE &&
        (uint64_t)m->n_prompt * v->info->n_embd * sizeof(float) > SUBMIT_VECTORS_MAX)
        return err_set(err, 400, "input",
                       "Vectors of single tokens are computed for at most %zu tokens.",
                       SUBMIT_VECTORS_MAX / (v->info->n_embd * sizeof(float)));
    if (v->info->encoder && !pool)
        return err_set(err, 400, "model",
                       "This is an embedding model. Send the request to /v1/embeddings.");
    if (m->flags & SUBMIT_SCORE && (!v->info->ranks || !pool || pool & SUBMIT_POOL_NONE))
        return err_set(err, 400, "model", "This model is not a reranker and computes no scores.");
    if (m->flags & SUBMIT_PREWARM && (m->flags != SUBMIT_PREWARM || m->n_tokens != m->n_prompt ||
                                      m->grammar.len || m->session == 0))
        return err_set(err, 400, NULL, "Only the prompt of a session can be computed ahead.");
    if (m->triggers.len > 0 && m->grammar.len == 0)
        return err_set(err, 400, NULL, "Triggers can be given only with a grammar.");
    if (m->grammar.len > 0 && !v->constraints)
        return err_set(err, 400, NULL, "This server cannot constrain output.");
    TRY(allowed_check(m, v->info->n_vocab, err));
    TRY(ids_check(m->breakers, v->info->n_vocab, "dry_sequence_breakers", err));
    return ids_check(m->prediction, v->info->n_vocab, "prediction", err);
}

static int copy_lists(struct request *r, const struct submit *m) {
    size_t n_end = 0;
    const int32_t *end = NULL;

    if (r->sampling.tokenizer && !r->sampling.ignore_eos)
        end = tokenizer_end_ids(r->sampling.tokenizer, &n_end);
    r->sampling.bans = calloc(m->n_stop_ids + n_end + 1, sizeof(*r->sampling.bans));
    r->sampling.bias = calloc(m->n_bias + 1, sizeof(*r->sampling.bias));
    if (!r->sampling.bans || !r->sampling.bias)
        return -ENOMEM;
    if (m->n_stop_ids > 0)
        memcpy(r->sampling.bans, m->stop_ids, m->n_stop_ids * sizeof(*r->sampling.bans));
    if (n_end > 0)
        memcpy(r->sampling.bans + m->n_stop_ids, end, n_end * sizeof(*r->sampling.bans));
    /* A prediction longer than the output is of no use. */
    r->draft.n_prediction = MIN(ids_n(m->prediction), m->max_new);
    if (r->draft.n_prediction > 0) {
        r->draft.prediction = malloc(r->draft.n_prediction * sizeof(*r->draft.prediction));
        if (!r->draft.prediction)
            return -ENOMEM;
        memcpy(r->draft.prediction, m->prediction.data,
               r->draft.n_prediction * sizeof(*r->draft.prediction));
    }
    r->sampling.n_stop_ids = m->n_stop_ids;
    r->sampling.n_bans = m->n_stop_ids + (uint32_t)n_end;
    for (uint32_t i = 0; i < m->n_bias; i++)
        r->sampling.bias[i] = (struct engine_bias){m->bias[i].token, m->bias[i].bias};
    return 0;
}

static void request_set_param(struct request *r, const struct submit *m) {
    const struct sampling *s = &m->sampling;

    r->sampling.param = (struct engine_param){
        .temperature = (float)s->temperature,
        .top_p = (float)s->top_p,
        .min_p = (float)s->min_p,
        .repetition = (float)s->repetition_penalty,
        .presence = (float)s->presence_penalty,
        .frequency = (float)s->frequency_penalty,
        .top_k = (uint32_t)MIN(MAX(s->top_k, 0), INT32_MAX),
        .seed = m->seed,
        .choice = m->choice,
        .n_bias = m->n_bias,
        .bias = r->sampling.bias,
        .bans = r->sampling.bans,
        .n_prompt = m->n_prompt,
    };
}

/* Sets the rarely used samplers, if any is on. Returns 0 or -ENOMEM. */
static int set_samplers(struct request *r, const struct submit *m, uint32_t n_vocab) {
    const struct sampling *s = &m->sampling;
    struct engine_samplers *e = &r->sampling.samplers;

    e->top_n_sigma = (float)MAX(s->top_n_sigma, 0);
    if (s->typical_p < 1)
        e->typical_p = (float)MAX(s->typical_p, 1e-6);
    e->xtc_probability = (float)s->xtc_probability;
    e->xtc_threshold = (float)s->xtc_threshold;
    if (s->dry_penalty_last_n)
        e->dry_multiplier = (float)s->dry_multiplier;
    e->dry_base = (float)s->dry_base;
    e->dry_allowed = (uint32_t)s->dry_allowed_length;
    e->dry_last_n = (uint32_t)MAX(s->dry_penalty_last_n, 0);
    if (e->top_n_sigma > 0 || e->typical_p > 0 || e->xtc_probability > 0 || e->dry_multiplier > 0)
        r->sampling.param.samplers = e;
    if (e->dry_multiplier <= 0 || m->breakers.len == 0)
        return 0;
    r->sampling.breakers = calloc((n_vocab + 31) / 32, sizeof(*r->sampling.breakers));
    if (!r->sampling.breakers)
        return -ENOMEM;
    for (uint32_t i = 0; i < ids_n(m->breakers); i++) {
        uint32_t id = (uint32_t)ids_at(m->breakers, i);

        r->sampling.breakers[id / 32] |= 1u << id % 32;
    }
    e->breakers = r->sampling.breakers;
    return 0;
}

static int new_stops(struct request *r, const struct submit *m) {
    struct stop_string s[SUBMIT_STOPS_MAX];

    if (m->n_stops == 0 || !r->sampling.tokenizer)
        return 0;
    for (uint32_t i = 0; i < m->n_stops; i++)
        s[i] = (struct stop_string){m->stops[i].data, m->stops[i].len};
    return stops_new(&r->sampling.stops, s, m->n_stops);
}

static uint64_t request_mix(uint64_t h) {
    h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93u;
    h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93u;
    return h ^ (h >> 32);
}

/* Computes the chained hashes of full pages. They only show which requests compute the same: the
 * pager compares tokens before it shares a page. Returns 0 or -ENOMEM. */
static int hash_pages(struct request *r, uint32_t page_tokens) {
    uint64_t h = 0, word;

    for (size_t i = 0; i < sizeof(r->share.key); i += sizeof(word)) {
        memcpy(&word, r->share.key + i, sizeof(word));
        h = request_mix(h + word);
    }
    r->n_hashes = (r->n_tokens - 1) / page_tokens;
    r->hash = calloc(r->n_hashes + 1, sizeof(*r->hash));
    if (!r->hash)
        return -ENOMEM;
    for (uint32_t i = 0, t = 0; i < r->n_hashes; i++) {
        for (uint32_t k = 0; k < page_tokens; k++)
            h = (h ^ (uint32_t)request_keys(r)[t++]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
        r->hash[i] = h = request_mix(h + i);
    }
    return 0;
}

/* ---- tokens ---- */

static int grow_array(void *pp, uint32_t cap, size_t size) {
    void **p = pp, *bigger = realloc(*p, cap * size);

    if (!bigger)
        return -ENOMEM;
    *p = bigger;
    return 0;
}

/* A step in flight may still read the old array, so it is kept until the next growth, at least
 * GROW_MIN tokens later. That step has ended by then, since a step brings fewer tokens. */
int request_reserve(struct request *r, uint32_t n) {
    if (n <= r->cap - r->n_tokens)
        return 0;
    uint32_t cap = r->cap + MAX(r->cap / 2, GROW_MIN + n);
    if (r->keys && grow_array(&r->keys, cap, sizeof(*r->keys)) < 0)
        return -ENOMEM;
    int32_t *p = malloc(cap * sizeof(*p));
    if (!p)
        return -ENOMEM;
    assert(cap - r->n_tokens >= n);
    memcpy(p, r->tokens, r->n_tokens * sizeof(*p));
    free(r->retired);
    r->retired = r->tokens;
    r->tokens = p;
    r->cap = cap;
    return 0;
}

/* Makes room for the values reported with the next output. Returns 0 or -ENOMEM. */
static int reserve_outputs(struct request *r) {
    uint32_t n = request_n_out(r) - r->out.base, cap = MAX(16, 2 * n);

    if (n < r->out.cap)
        return 0;
    if ((r->flags & SUBMIT_LOGPROBS) &&
        grow_array(&r->out.logprobs, cap, sizeof(*r->out.logprobs)) < 0)
        return -ENOMEM;
    if (r->sampling.n_top &&
        grow_array(&r->out.top, cap, r->sampling.n_top * sizeof(*r->out.top)) < 0)
        return -ENOMEM;
    if ((r->flags & SUBMIT_DIGESTS) &&
        grow_array(&r->out.digests, cap, sizeof(*r->out.digests)) < 0)
        return -ENOMEM;
    r->out.cap = cap;
    return 0;
}

/* Copies @n entries; token -1 where the engine has fewer. */
static void copy_top(struct event_top *to, uint32_t n, const struct engine_out *o) {
    for (uint32_t k = 0; k < n; k++) {
        to[k] = (struct event_top){-1, 0};
        if (k < o->n_top)
            to[k] = (struct event_top){o->top[k].token, o->top[k].logprob};
    }
}

static void store_output(struct request *r, const struct engine_out *o) {
    uint32_t i = request_n_out(r) - r->out.base;

    if (r->flags & SUBMIT_LOGPROBS)
        r->out.logprobs[i] = o->logprob;
    if (r->flags & SUBMIT_DIGESTS)
        r->out.digests[i] = o->digest;
    copy_top(r->out.top + (size_t)i * r->sampling.n_top, r->sampling.n_top, o);
}

static bool request_is_end(const struct request *r, int32_t token) {
    for (uint32_t i = 0; i < r->sampling.n_stop_ids; i++)
        if (r->sampling.bans[i] == token)
            return true;
    return r->sampling.tokenizer && !r->sampling.ignore_eos &&
           tokenizer_is_end(r->sampling.tokenizer, token);
}

static bool completes_stop(struct request *r, int32_t token) {
    struct stops_match match;
    size_t len;

    if (!r->sampling.stops)
        return false;
    const char *bytes = tokenizer_piece(r->sampling.tokenizer, token, false, &len);
    return stops_feed(r->sampling.stops, bytes, len, &match);
}

/* Charges the tenant @n_bytes for the state of the constraint, and for its copy where masks are
 * late. */
static void charge_matcher(struct request *r, size_t n_bytes) {
    if (n_bytes != r->grammar.charged && r->grammar.constraints->charge)
        r->grammar.constraints->charge(r->grammar.constraints->ctx, r->payer,
                                       (int64_t)n_bytes - (int64_t)r->grammar.charged);
    r->grammar.charged = n_bytes;
}

/* Advances the constraint by @token. Masks exclude tokens that it refuses, so a refusal is a bug of
 * ours or of an earlier worker. An ignored end token comes only when no other token is allowed, and
 * ends the request. */
static enum finish_reason request_follow(struct request *r, int32_t token) {
    int e = constraint_accept(r->grammar.matcher, token);
    size_t n_bytes = constraint_state_bytes(r->grammar.matcher);

    if (r->grammar.late)
        n_bytes *= 2;
    charge_matcher(r, n_bytes);
    if (e != 0) {
        request_blame(r, e);
        return FINISH_ERROR;
    }
    if (constraint_is_done(r->grammar.matcher))
        return FINISH_STOP;
    return FINISH_NONE;
}

/* Returns why the request ends with its last token @token; FINISH_NONE if it does not. */
static enum finish_reason request_judge(struct request *r, int32_t token) {
    bool stop = completes_stop(r, token);
    enum finish_reason why = FINISH_NONE;

    if (stop || request_is_end(r, token))
        return FINISH_STOP;
    if (r->grammar.matcher)
        why = request_follow(r, token);
    if (why == FINISH_NONE && r->n_tokens >= r->max_tokens)
        why = FINISH_LENGTH;
    return why;
}

void request_blame(struct request *r, int e) {
    if (e == -E2BIG)
        err_set_code(&r->end.why, 400, "grammar_too_complex", NULL,
                     "The grammar is too ambiguous: the output so far has too many derivations.");
    else if (e == 0 && r->grammar.allowed)
        err_set_code(&r->end.why, 400, "invalid_value", "allowed_token_ids",
                     "allowed_token_ids, bad_words and the required format of the output "
                     "together allow no token.");
    else if (e == 0)
        err_set_code(
            &r->end.why, 400, "grammar_unsupported", NULL,
            "The grammar allows no token of this model's vocabulary after the output so far.");
    else if (e == -ENOMEM)
        err_set_code(&r->end.why, 503, "out_of_memory", NULL, "Out of memory for the grammar.");
    else
        err_set_code(&r->end.why, 500, "internal_error", NULL,
                     "Internal error: a sampled token is not allowed by the grammar.");
}

int request_constrain(struct request *r, const struct constraint *c) {
    enum finish_reason why = FINISH_NONE;

    assert(c && !r->grammar.constraint && !r->grammar.matcher);
    r->grammar.constraint = c;
    TRY(constraint_state_new(&r->grammar.matcher, c));
    charge_matcher(r, constraint_state_bytes(r->grammar.matcher));
    for (uint32_t i = r->n_prompt; i < r->n_tokens && why == FINISH_NONE; i++)
        why = request_follow(r, r->tokens[i]);
    return (int)why;
}

int request_add(struct request *r, const struct engine_out *o) {
    if (request_reserve(r, 1) < 0 || reserve_outputs(r) < 0)
        return -ENOMEM;
    assert(r->state != REQUEST_DONE && r->n_tokens < r->cap);
    store_output(r, o);
    if (r->keys)
        r->keys[r->n_tokens] = o->token;
    r->tokens[r->n_tokens++] = o->token;
    return request_judge(r, o->token);
}

void request_add_prompt_lp(struct request *r, uint32_t pos, const struct engine_out *o) {
    if (pos != r->out.n_prompt_lp || pos >= r->out.want_prompt_lp)
        return;
    copy_top(r->out.prompt_top + (size_t)pos * r->sampling.n_prompt_top, r->sampling.n_prompt_top,
             o);
    r->out.prompt_lp[r->out.n_prompt_lp++] = o->logprob;
}

void request_add_hidden(struct request *r, uint32_t pos, const float *v) {
    if (!r->pool.sum) {
        size_t at = 0;

        if (r->flags & SUBMIT_POOL_NONE)
            at = (size_t)pos * r->pool.n_embd;
        assert(at + r->pool.n_embd <= r->pool.n_vector);
        memcpy(r->pool.vector + at, v, r->pool.n_embd * sizeof(*v));
    }
    if (!request_pools_all(r))
        return;
    /* a preempted request continues after its steps were taken back, so no position comes twice */
    assert(pos == r->pool.n);
    r->pool.n++;
    for (uint32_t i = 0; i < r->pool.n_embd && r->pool.sum; i++)
        r->pool.sum[i] += (double)v[i];
    for (uint32_t i = 0; i < r->pool.n_embd && r->pool.sum && r->pool.n == r->n_prompt; i++)
        r->pool.vector[i] = (float)(r->pool.sum[i] / r->n_prompt);
}

void request_trim(struct request *r) {
    assert(r->acked.n_out <= request_n_out(r));
    if (r->acked.n_out == request_n_out(r))
        r->out.base = r->acked.n_out;
}

/* ---- pages ---- */

uint32_t request_n_stored(const struct request *r) {
    if (!r->seq)
        return 0;
    return kv_seq_committed(r->seq);
}

uint32_t request_n_pages(const struct request *r) {
    uint32_t n = 0;

    if (r->seq)
        kv_seq_pages(r->seq, &n);
    return n;
}

void request_free_pages(struct request *r) {
    r->seq = kv_seq_free(r->seq);
}

uint32_t request_shareable(const struct request *r) {
    if (r->n_hashes == 0)
        return 0;
    if (r->flags & SUBMIT_POOL_CLS)
        return 0;
    if (request_pools_all(r))
        return MIN(r->pool.n, r->n_tokens - 1);
    if (r->out.n_prompt_lp < r->out.want_prompt_lp)
        return r->out.n_prompt_lp;
    return r->n_tokens - 1;
}

uint32_t request_cut(const struct request *r, uint32_t n_tokens, uint32_t page_tokens) {
    for (uint32_t i = r->picture.n; r->picture.two_way && i-- > 0;) {
        const struct submit_picture *p = &r->picture.list[i].in;

        if (n_tokens > p->at && n_tokens - p->at < p->n_rows)
            n_tokens = p->at - p->at % page_tokens;
    }
    return n_tokens;
}

struct kv_match request_match(const struct request *r, const struct kv_pager *p, uint32_t n_tokens,
                              uint32_t page_tokens) {
    for (;;) {
        struct kv_match m = kv_pager_match(p, &r->share, request_keys(r), n_tokens);

        n_tokens = request_cut(r, m.n_tokens, page_tokens);
        if (n_tokens == m.n_tokens)
            return m;
    }
}

/* ---- creation and end ---- */

/* Feeds the output of a resumed request to its stop conditions again. The request may have ended
 * already, if the worker died between the last token and the event of its end. */
static void request_replay(struct request *r) {
    enum finish_reason why = FINISH_NONE;
    uint32_t n = r->n_tokens;

    for (uint32_t i = r->n_prompt; i < n && why == FINISH_NONE; i++) {
        r->n_tokens = i + 1;
        why = request_judge(r, r->tokens[i]);
    }
    r->n_tokens = n;
    if (why == FINISH_NONE && n >= r->max_tokens)
        why = FINISH_LENGTH;
    if (why != FINISH_NONE)
        request_finish(r, why);
}

/* Copies the pictures of @m and puts the numbers of their content into r->keys. Returns 0 or
 * -ENOMEM. */
static int copy_pictures(struct request *r, const struct submit *m, const struct sched_view *v) {
    uint32_t n = m->n_pictures;

    if (n == 0)
        return 0;
    r->picture.two_way = v->info->two_way;
    r->picture.list = calloc(n, sizeof(*r->picture.list));
    r->picture.shown = calloc(2 * (size_t)n, sizeof(*r->picture.shown));
    r->keys = malloc(r->cap * sizeof(*r->keys));
    if (!r->picture.list || !r->picture.shown || !r->keys)
        return -ENOMEM;
    memcpy(r->keys, r->tokens, r->n_tokens * sizeof(*r->keys));
    for (r->picture.n = 0; r->picture.n < n; r->picture.n++) {
        const struct submit_picture *p = &m->pictures[r->picture.n];
        struct kv_medium of = {
            .n_rows = p->n_rows,
            .n_columns = p->n_columns,
            .n_lines = p->n_lines,
            .n_positions = p->n_positions,
            .width = p->width,
            .height = p->height,
            .token = r->tokens[p->at],
        };

        memcpy(of.digest, p->digest, sizeof(of.digest));
        int32_t number = kv_media_number(v->media, &of);
        if (number == 0)
            return -ENOMEM;
        r->picture.list[r->picture.n] = (struct request_picture){.in = *p, .number = number};
        for (uint32_t k = 0; k < p->n_rows; k++)
            r->keys[p->at + k] = number;
    }
    return 0;
}

static int request_fill(struct request *r, const struct submit *m, const struct sched_view *v) {
    uint64_t room = MIN(v->info->max_context, (uint64_t)v->n_slots + 1);

    r->tokens = malloc((m->n_tokens + GROW_MIN) * sizeof(*r->tokens));
    if (!r->tokens)
        return -ENOMEM;
    memcpy(r->tokens, m->tokens, m->n_tokens * sizeof(*r->tokens));
    r->n_tokens = m->n_tokens;
    r->cap = m->n_tokens + GROW_MIN;
    r->max_tokens = (uint32_t)MIN((uint64_t)m->n_prompt + m->max_new, room);
    uint64_t min_new = MAX((uint64_t)m->min_new, (uint64_t)MAX(m->sampling.min_tokens, 0));
    r->min_tokens = (uint32_t)MIN(m->n_prompt + min_new, r->max_tokens);
    TRY(copy_lists(r, m));
    TRY(new_stops(r, m));
    TRY(allowed_new(&r->grammar.allowed, m, v->info->n_vocab));
    request_set_param(r, m);
    TRY(set_samplers(r, m, v->info->n_vocab));
    TRY(copy_pictures(r, m, v));
    if (!v->no_sharing)
        TRY(hash_pages(r, v->page_tokens));
    if ((r->flags & SUBMIT_PROMPT_LOGPROBS) && m->n_tokens == m->n_prompt) {
        r->out.want_prompt_lp = m->n_prompt - 1;
        r->out.prompt_lp = calloc(m->n_prompt, sizeof(*r->out.prompt_lp));
        r->sampling.n_prompt_top = m->n_prompt_top;
        r->out.prompt_top =
            calloc((size_t)m->n_prompt * m->n_prompt_top + 1, sizeof(*r->out.prompt_top));
        if (!r->out.prompt_lp || !r->out.prompt_top)
            return -ENOMEM;
    }
    if (request_is_prewarm(r)) {
        r->flags |= SUBMIT_NO_SPECULATION;
        r->max_tokens = m->n_prompt + 1;
        r->deadline_ns = 0;
        r->prewarm.turn = m->group;
        r->prewarm.tenant = m->tenant;
        r->prewarm.weight_milli = m->weight_milli;
    }
    if (request_pools(r)) {
        r->flags |= SUBMIT_NO_SPECULATION;
        r->max_tokens = m->n_prompt + 1;
        r->pool.n_embd = v->info->n_embd;
        r->pool.n_vector = v->info->n_embd;
        if (r->flags & SUBMIT_POOL_NONE)
            r->pool.n_vector *= m->n_prompt;
        r->pool.vector = calloc(r->pool.n_vector, sizeof(*r->pool.vector));
        if (r->flags & SUBMIT_POOL_MEAN)
            r->pool.sum = calloc(v->info->n_embd, sizeof(*r->pool.sum));
        if (!r->pool.vector || (r->flags & SUBMIT_POOL_MEAN && !r->pool.sum))
            return -ENOMEM;
    }
    r->acked.n_out = r->sent.n_out = r->out.base = m->n_tokens - m->n_prompt;
    request_replay(r);
    return 0;
}

int request_new(struct request **out, const struct submit *m, const struct sched_view *view,
                uint64_t order) {
    CLEANUP(request_freep) struct request *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    list_init(&r->queued.link);
    list_init(&r->pending);
    r->queued.key = queue_key(m->arrived_ns, m->priority, order);
    r->id = m->id;
    r->session = m->session;
    r->class = m->class;
    r->deadline_ns = m->deadline_ns;
    r->n_prompt = r->n_tokens = m->n_prompt;
    r->flags = m->flags;
    if (m->n_top > 0)
        r->flags |= SUBMIT_LOGPROBS;
    r->sampling.n_top = m->n_top;
    r->alone = m->n_faults >= 2 || m->flags & SUBMIT_PREWARM;
    r->sampling.ignore_eos = m->sampling.ignore_eos;
    r->sampling.tokenizer = view->tokenizer;
    r->grammar.constraints = view->constraints;
    r->payer = m->tenant;
    memcpy(r->isolation.key, m->isolation_key, sizeof(r->isolation.key));
    r->share = r->isolation;
    if (view->no_sharing) /* a unique key, which no other request has */
        for (size_t i = 0; i < sizeof(order); i++)
            r->share.key[i] = (uint8_t)(order >> 8 * i), r->share.key[8 + i] = 0xA5;
    if (check_submit(m, view, &r->end.why) < 0) {
        r->end.refused = true;
        request_finish(r, FINISH_ERROR);
    } else {
        TRY(request_fill(r, m, view));
    }
    *out = STEAL(r);
    return 0;
}

struct request *request_free(struct request *r) {
    if (!r)
        return NULL;
    assert(!r->seq && r->n_in_flight == 0 && !r->draft.spec && !r->draft.drafter &&
           !r->grammar.late);
    list_remove(&r->queued.link);
    list_remove(&r->pending);
    stops_free(r->sampling.stops);
    free(r->sampling.bans);
    free(r->sampling.bias);
    free(r->draft.prediction);
    allowed_free(r->grammar.allowed);
    free(r->sampling.breakers);
    constraint_state_free(r->grammar.matcher);
    if (r->grammar.charged)
        charge_matcher(r, 0);
    if (r->grammar.constraint)
        r->grammar.constraints->release(r->grammar.constraints->ctx, r->grammar.constraint,
                                        r->payer);
    free(r->tokens);
    free(r->retired);
    free(r->keys);
    free(r->picture.list);
    free(r->picture.shown);
    free(r->hash);
    free(r->out.logprobs);
    free(r->out.top);
    free(r->out.digests);
    free(r->out.prompt_lp);
    free(r->out.prompt_top);
    free(r->pool.vector);
    free(r->pool.sum);
    free(r);
    return NULL;
}
