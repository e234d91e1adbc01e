/*
 * state - the position of one output in its constraint: free, held by the grammar, or at its end.
 *
 *                 trigger complete, rest fits
 *      .-----------------------------------------.
 *      |                                         v
 *    FREE <----- repeat: nothing can follow ---- HELD
 *      |  <----- repeat: may end, and does ----- |
 *      |                                         |
 *      '------------ end token ---> DONE <-------'
 *
 * Each accepted token stores the position before it, and adds at most one checkpoint to the
 * grammar's own history. Taking tokens back therefore restores an earlier position and rolls the
 * grammar back by the difference of n_accepted.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "grammar/constraint/private.h"
#include "grammar/vocab/vocab.h"

/* Refuses a grammar that allows no token at its start, or is too ambiguous there. Later it would
 * only fail in the middle of a generation. */
static int constraint_check_start(const struct constraint *c, struct err *err) {
    CLEANUP(freep)
    uint32_t *bits = malloc(grammar_vocab_n_words(c->vocab) * sizeof(*bits));
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

    if (!bits)
        return -ENOMEM;
    int r = grammar_state_new(&s, c->grammar);
    if (r == 0) {
        int64_t n = grammar_mask(s, bits);

        if (n == 0)
            return err_set_code(
                err, 400, "grammar_unsupported", NULL,
                "no token of this model's vocabulary can begin a text of this grammar");
        r = (int)MIN(n, 0);
    }
    if (r == -E2BIG)
        return err_set_code(
            err, 400, "grammar_too_complex", NULL,
            "the grammar is too ambiguous: its first characters can be read in too many ways");
    return r;
}

int constraint_new(struct constraint **out, const struct grammar_vocab *v, const char *grammar,
                   size_t n_grammar, const char *triggers, size_t n_triggers,
                   const struct grammar_limits *limits, struct err *err) {
    CLEANUP(constraint_freep) struct constraint *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    c->vocab = v;
    TRY(triggers_new(&c->triggers, triggers, n_triggers, err));
    TRY(constraint_compile(&c->grammar, v, grammar, n_grammar, limits, err));
    TRY(constraint_check_start(c, err));
    if (c->triggers)
        TRY(crossing_find(c, err));
    TRY(ending_find(c));
    *out = STEAL(c);
    return 0;
}

void constraint_prepare(const struct constraint *c) {
    grammar_prepare(c->grammar);
}

struct constraint *constraint_free(struct constraint *c) {
    if (!c)
        return NULL;
    grammar_free(c->grammar);
    triggers_free(c->triggers);
    free(c->first);
    free(c->crossing);
    free(c->first_done);
    free(c->done);
    free(c->to_trigger);
    free(c);
    return NULL;
}

size_t constraint_bytes(const struct constraint *c) {
    size_t n = sizeof(*c) + grammar_bytes(c->grammar);

    if (c->triggers)
        n += c->triggers->n * (sizeof(*c->triggers->node) + 3 * sizeof(*c->first)) +
             (c->first[c->triggers->n] + c->first_done[c->triggers->n]) * sizeof(*c->crossing);
    return n;
}

uint32_t constraint_n_words(const struct constraint *c) {
    return grammar_vocab_n_words(c->vocab);
}

int constraint_state_new(struct constraint_state **out, const struct constraint *c) {
    struct constraint_state *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    int r = grammar_state_new(&s->g, c->grammar);

    if (r < 0) {
        free(s);
        return r;
    }
    s->c = c;
    constraint_state_reset(s);
    *out = s;
    return 0;
}

static void constraint_check(const struct constraint_state *s) {
    const struct triggers *t = s->c->triggers;

    assert(s->n <= ARRAY_SIZE(s->before));
    assert(s->at.phase != FREE || (t && s->at.node < t->n));
    assert(s->at.n_accepted == grammar_n_accepted(s->g));
    assert(s->n == 0 || s->before[s->n - 1].n_accepted <= s->at.n_accepted);
}

struct constraint_state *constraint_state_free(struct constraint_state *s) {
    if (s) {
        grammar_state_free(s->g);
        free(s->scratch);
        free(s);
    }
    return NULL;
}

size_t constraint_state_bytes(const struct constraint_state *s) {
    size_t n_scratch = s->scratch ? 2 * grammar_vocab_n_words(s->c->vocab) : 0;

    return sizeof(*s) + grammar_state_bytes(s->g) + n_scratch * sizeof(*s->scratch);
}

void constraint_state_reset(struct constraint_state *s) {
    grammar_state_reset(s->g);
    const struct triggers *t = s->c->triggers;

    s->at = (struct position){.phase = t ? FREE : HELD, .node = t ? t->start : 0};
    s->n = 0;
    constraint_check(s);
}

int constraint_state_copy(struct constraint_state *dst, const struct constraint_state *src) {
    assert(dst->c == src->c);
    int r = grammar_state_copy(dst->g, src->g);

    if (r < 0) {
        constraint_state_reset(dst);
        return r;
    }
    dst->at = src->at;
    dst->n = src->n;
    memcpy(dst->before, src->before, src->n * sizeof(*src->before));
    return 0;
}

bool constraint_is_free(const struct constraint_state *s) {
    const uint32_t *first = s->c->first;

    return s->at.phase == FREE && position_may_stop(s) &&
           first[s->at.node] == first[s->at.node + 1];
}

uint32_t mask_free(const struct constraint *c, uint32_t node, bool ends, uint32_t *bits) {
    uint32_t n = c->vocab->n, count = n;
    const int32_t *end = c->vocab->ends;

    memset(bits, 0xff, n / 32 * sizeof(*bits));
    if (n % 32)
        bits[n / 32] = (1u << n % 32) - 1;
    assert(node < c->triggers->n);
    for (uint32_t i = c->first[node]; i < c->first[node + 1]; i++)
        clear_bit(bits, c->crossing[i]);
    count -= c->first[node + 1] - c->first[node];
    for (size_t i = 0; !ends && i < c->vocab->n_ends; i++) {
        count -= bits[end[i] / 32] >> (end[i] % 32) & 1;
        clear_bit(bits, end[i]);
    }
    assert(count <= n); /* no id was taken twice */
    return count;
}

int64_t mask_add_free(const struct constraint_state *s, uint32_t *bits) {
    const struct constraint *c = s->c;
    uint32_t n = c->vocab->n, count = n, open = c->triggers->open;
    uint32_t from = c->first[open], to = c->first[open + 1];

    for (uint32_t i = from; i < to; i++) {
        /* Keeps the bits of tokens that are forbidden here; all other bits are set below. */
        int32_t t = c->crossing[i];

        count -= !(bits[t / 32] >> (t % 32) & 1);
    }
    uint32_t k = from;

    for (uint32_t w = 0; w < (n + 31) / 32; w++) {
        uint32_t all = w < n / 32 ? UINT32_MAX : (1u << n % 32) - 1;

        for (; k < to && (uint32_t)c->crossing[k] / 32 == w; k++)
            all &= ~(1u << (c->crossing[k] % 32));
        bits[w] |= all;
    }
    assert(k == to); /* the ids are in order and below n */
    return count;
}

void constraint_set_quick(struct constraint_state *s, bool quick) {
    grammar_state_set_quick(s->g, quick);
}

int64_t constraint_mask(struct constraint_state *s, uint32_t *bits) {
    if (s->at.phase == FREE)
        return mask_free(s->c, s->at.node, position_may_stop(s), bits);
    if (s->at.phase == DONE) {
        memset(bits, 0, grammar_vocab_n_words(s->c->vocab) * sizeof(*bits));
        return 0;
    }
    int64_t n = grammar_mask(s->g, bits);

    if (n < 0 || !position_may_end(s))
        return n;
    return mask_add_free(s, bits);
}

/* Accepts @token while the output is free; *@at is the position before it and becomes the one
 * behind it. */
static int accept_free(struct constraint_state *s, struct position *at, int32_t token) {
    const struct triggers *t = s->c->triggers;
    size_t len;
    const uint8_t *bytes = vocab_bytes(s->c->vocab, token, &len);
    const struct trigger_node *found;

    if (vocab_is_end(s->c->vocab, token)) {
        at->phase = DONE;
        if (t->required && !at->seen)
            return -EINVAL;
        return 0;
    }
    size_t n = triggers_feed(t, &at->node, bytes, len, &found);

    if (!found)
        return 0;
    at->phase = HELD;
    at->seen = true;
    return triggers_hold(t, found, s->g, bytes + n, len - n);
}

static int accept_held(struct constraint_state *s, struct position *at, int32_t token) {
    int r = grammar_accept(s->g, token);

    if (r == -EINVAL && position_may_end(s)) {
        at->phase = FREE;
        at->node = s->c->triggers->open;
        return accept_free(s, at, token);
    }
    if (r == 0 && grammar_is_done(s->g))
        at->phase = DONE;
    return r;
}

int constraint_accept(struct constraint_state *s, int32_t token) {
    struct position at = s->at;

    if (token < 0 || (uint32_t)token >= s->c->vocab->n || at.phase == DONE)
        return -EINVAL;
    if (at.phase == FREE)
        TRY(accept_free(s, &at, token));
    else
        TRY(accept_held(s, &at, token));
    if (at.phase == HELD && s->c->triggers && s->c->triggers->repeat && grammar_must_end(s->g)) {
        at.phase = FREE;
        at.node = s->c->triggers->open;
    }
    at.n_accepted = grammar_n_accepted(s->g);
    if (s->n == ARRAY_SIZE(s->before)) {
        s->n -= CONSTRAINT_HISTORY;
        memmove(s->before, s->before + CONSTRAINT_HISTORY, s->n * sizeof(*s->before));
    }
    s->before[s->n++] = s->at;
    s->at = at;
    constraint_check(s);
    return 0;
}

int constraint_rollback(struct constraint_state *s, uint32_t n) {
    if (n > s->n)
        return -EINVAL;
    if (n == 0)
        return 0;
    struct position at = s->before[s->n - n];
    assert(at.n_accepted <= grammar_n_accepted(s->g));
    TRY(grammar_rollback(s->g, grammar_n_accepted(s->g) - at.n_accepted));
    s->at = at;
    s->n -= n;
    constraint_check(s);
    return 0;
}

bool constraint_is_done(const struct constraint_state *s) {
    return s->at.phase == DONE;
}

bool constraint_can_end(const struct constraint_state *s) {
    if (s->at.phase == FREE)
        return position_may_stop(s);
    return s->at.phase == HELD && grammar_can_end(s->g);
}

size_t constraint_forced(struct constraint_state *s, uint8_t *out, size_t cap, int32_t *token) {
    *token = -1;
    if (s->at.phase != HELD)
        return 0;
    return grammar_forced(s->g, out, cap, token);
}
