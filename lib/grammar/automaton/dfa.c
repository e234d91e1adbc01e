/*
 * dfa - makes the NFA of one rule deterministic by subset construction.
 *
 * A state of the DFA is the set of the NFA states that the bytes so far may have led to. Example:
 * the rule "ab" | "ac" as an NFA, and its DFA:
 *
 *     0 --a--> 2 --b--> 1         {0} --a--> {2, 3} --b--> {1}        1 is the end, so {1} accepts
 *     0 --a--> 3 --c--> 1                    {2, 3} --c--> {1}
 *
 * emit_state() makes the edges of one DFA state: it collects the edges of all its NFA states, sorts
 * them by symbol, and for each symbol gathers the NFA states that it leads to (close_over(), which
 * also follows empty edges). Only states that have edges of their own or end the rule stay in the
 * set: sets that differ in states which were merely passed through are equal, so there are fewer.
 * dfa_intern() finds a set again by a hash table over its sorted members, or makes a new DFA state,
 * whose turn comes later: make_states() goes on until no state is left without its edges.
 *
 * Symbols are ranges of bytes, special tokens and calls. Ranges that overlap are cut at their ends
 * (emit_overlapping()): [a-f] to 1 and [d-z] to 2 become [a-c] to {1}, [d-f] to {1, 2} and [g-z] to
 * {2}. Since a state of a schema nearly always has a few single bytes, ranges are grouped first,
 * and equal ones take a shorter way. Calls are grouped only where they are the same call: a call
 * beside a byte with which the callee may begin stays ambiguous, and the machine then has several
 * configurations.
 *
 * The start. No edge leads to the start of a plain rule, and it does not accept (automaton.h). So
 * its set is made as a fresh state that is not in the hash table: an edge that leads to the same
 * set gets another state. In a loop rule the start is the end as well, and is entered again.
 *
 * Bounds. The number of sets can be exponential in the number of NFA states, and the source may be
 * hostile: max_states and the work of each set (build_work()) bound it.
 */

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "grammar/automaton/nfa.h"

#define CALL_KEY (1ull << 32)

struct sets {
    /* the sets' members one after the other */
    uint32_t *pool;
    uint32_t n_pool, cap_pool;
    /* first member of set i; begin[n] is the end */
    uint32_t *begin;
    uint32_t n, cap;
    struct hash_index known;
    /* used by the closure */
    uint32_t *mark, *work, *found, cap_mark, stamp;
    /* by NFA state: 1 + the DFA state of its closure; 0: not known yet */
    uint32_t *alone;
    uint32_t n_found;
    struct out_edge { /* edges of the current set, ordered by symbol, calls last */
        uint64_t key;
        uint32_t to;
    } * out;
    uint32_t n_out, cap_out;
    uint32_t *point, cap_point;
};

struct dfa {
    struct maker *m;
    struct sets s;
    /* end: the NFA state */
    uint32_t rule, base, end;
    bool loop;
    /* flags of every state of the rule */
    uint8_t flags;
};

static void sets_free(struct sets *s) {
    free(s->pool);
    free(s->begin);
    hash_index_deinit(&s->known);
    free(s->mark);
    free(s->work);
    free(s->found);
    free(s->alone);
    free(s->out);
    free(s->point);
}

static int sets_init(struct dfa *d) {
    struct sets *s = &d->s;
    size_t n = d->m->n_nfa;

    s->mark = calloc(n, sizeof(*s->mark));
    s->work = malloc(n * sizeof(*s->work));
    s->found = malloc(n * sizeof(*s->found));
    s->alone = calloc(n, sizeof(*s->alone));
    s->begin = calloc(1, sizeof(*s->begin));
    s->cap = s->begin ? 1 : 0;
    if (s->mark && s->work && s->found && s->alone && s->begin)
        return 0;
    return build_no_memory(d->m->b);
}

static int by_number(const void *x, const void *y) {
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

    return (a > b) - (a < b);
}

static int dfa_by_key(const void *x, const void *y) {
    uint64_t a = ((const struct out_edge *)x)->key, b = ((const struct out_edge *)y)->key;

    return (a > b) - (a < b);
}

/* Sorts an array. Most arrays have one element or two. */
static void dfa_sort(void *v, uint32_t n, size_t size, int (*by)(const void *, const void *)) {
    if (n > 1)
        qsort(v, n, size, by);
}

static void start_closure(struct sets *s) {
    s->stamp++;
    s->n_found = 0;
}

static bool dfa_is_found(const struct sets *s, uint32_t q) {
    return s->mark[q] == s->stamp;
}

/* Adds @from and the states that it reaches by empty edges to found[]. */
static void close_over(struct dfa *d, uint32_t from) {
    struct sets *s = &d->s;
    struct maker *m = d->m;
    uint32_t n_work = 0, steps = 1;

    assert(from < m->n_nfa && s->n_found < m->n_nfa);

    if (s->mark[from] == s->stamp)
        return;
    s->mark[from] = s->stamp;
    s->work[n_work++] = from;
    while (n_work) {
        uint32_t q = s->work[--n_work];

        for (uint32_t e = m->nfa_empty[q]; e != NFA_NONE; e = m->nfa_edge[e].next, steps++) {
            uint32_t to = m->nfa_edge[e].to;

            if (s->mark[to] != s->stamp) {
                s->mark[to] = s->stamp;
                s->work[n_work++] = to;
            }
        }
        if (q == d->end || m->nfa_head[q] != NFA_NONE)
            s->found[s->n_found++] = q;
    }
    build_work(m->b, steps);
}

static int add_state(struct dfa *d) {
    struct grammar *g = d->m->g;

    TRY(maker_grow(d->m, &g->state, g->n_states, &d->m->cap_states, sizeof(*g->state)));
    if (g->n_states >= d->m->b->limits.max_states)
        return build_too_complex(d->m->b, "the grammar needs more than %u states",
                                 d->m->b->limits.max_states);
    g->state[g->n_states++] = (struct state){.rule = d->rule, .dense = -1, .flags = d->flags};
    return 0;
}

/* Makes room for the set in found[]. */
static int reserve_set(struct maker *m, struct sets *s) {
    TRY(m->b->failed);
    while (s->n_pool + s->n_found > s->cap_pool)
        TRY(maker_grow(m, &s->pool, s->cap_pool, &s->cap_pool, sizeof(*s->pool)));
    return maker_grow(m, &s->begin, s->n + 1, &s->cap, sizeof(*s->begin));
}

/* Returns the state of the set in found[], and makes it when it is new. @fresh: always makes a
 * state, which later searches do not find. The result is undefined after the build has failed. */
static uint32_t dfa_intern(struct dfa *d, bool fresh) {
    struct sets *s = &d->s;
    struct maker *m = d->m;

    dfa_sort(s->found, s->n_found, sizeof(*s->found), by_number);
    uint32_t h = numbers_hash(s->found, s->n_found);

    HASH_INDEX_EACH(s->known, h, i) {
        uint32_t n = s->begin[i + 1] - s->begin[i];

        if (!fresh && n == s->n_found &&
            memcmp(s->pool + s->begin[i], s->found, n * sizeof(*s->found)) == 0) {
            build_work(m->b, n / 8);
            return d->base + i;
        }
    }
    if (reserve_set(m, s) < 0 || add_state(d) < 0)
        return d->base;
    if (s->n_found)
        memcpy(s->pool + s->n_pool, s->found, s->n_found * sizeof(*s->found));
    s->n_pool += s->n_found;
    assert(m->g->n_states == d->base + s->n + 1); /* a set is a state */
    s->begin[s->n + 1] = s->n_pool;
    if (!fresh && hash_index_add(&s->known, h, s->n) < 0)
        build_no_memory(m->b);
    build_work(m->b, 1 + s->n_found);
    return d->base + s->n++;
}

static unsigned lo_of(const struct out_edge *e) {
    return (unsigned)(e->key >> 16);
}

static unsigned hi_of(const struct out_edge *e) {
    return e->key & 0xffff;
}

static uint64_t dfa_key(const struct nfa_edge *e) {
    if (e->kind == NFA_CALL)
        return CALL_KEY | e->desc;
    return (uint64_t)e->lo << 16 | e->hi;
}

static void emit_edge(struct dfa *d, uint32_t state, unsigned lo, unsigned hi, uint32_t to) {
    struct grammar *g = d->m->g;
    struct state *q = &g->state[state];

    if (d->m->b->failed)
        return;
    assert(lo <= hi && to >= d->base && to < g->n_states);
    assert(q->edge + q->n_edges == g->n_edges); /* edges of a state are neighbours */
    if (q->n_edges) {
        struct edge *last = &g->edge[g->n_edges - 1];

        assert(last->hi < lo); /* sorted and disjoint */

        if (last->to == to && last->hi + 1u == lo && lo < TOKEN_SYMBOL) {
            last->hi = (uint16_t)hi;
            return;
        }
    }
    assert(q->n_edges < TOKEN_SYMBOL + NFA_TOKENS_MAX);
    if (maker_grow(d->m, &g->edge, g->n_edges, &d->m->cap_edges, sizeof(*g->edge)) < 0)
        return;
    if (lo >= TOKEN_SYMBOL)
        q->flags |= STATE_TOKENS;
    g->edge[g->n_edges++] = (struct edge){(uint16_t)lo, (uint16_t)hi, to};
    q->n_edges++;
    build_work(d->m->b, 1);
}

/* Returns the state of the set in found[]. If the set contains the open state (nfa.h), its closure
 * alone stands for the set: the open state accepts all that the others accept. */
static uint32_t dfa_state(struct dfa *d) {
    uint32_t open = d->m->nfa_open;

    if (open != NFA_NONE && dfa_is_found(&d->s, open)) {
        start_closure(&d->s);
        close_over(d, open);
    }
    return dfa_intern(d, false);
}

/* Returns the state that out[@from, @to), edges with one and the same symbol, lead to. */
static uint32_t set_behind(struct dfa *d, uint32_t from, uint32_t to) {
    uint32_t *alone = to - from == 1 ? &d->s.alone[d->s.out[from].to] : NULL;

    if (alone && *alone)
        return *alone - 1;
    start_closure(&d->s);
    for (uint32_t i = from; i < to; i++)
        close_over(d, d->s.out[i].to);
    uint32_t state = dfa_state(d);

    if (alone)
        *alone = state + 1;
    return state;
}

/* Adds the edges out[@from, @to), whose ranges overlap: each stretch between two neighbouring ends
 * of ranges becomes one edge. */
static void emit_overlapping(struct dfa *d, uint32_t state, uint32_t from, uint32_t to) {
    struct build *b = d->m->b;
    struct sets *s = &d->s;
    uint32_t n = 0;

    for (uint32_t i = from; i < to; i++) {
        for (int k = 0; k < 2; k++) {
            if (maker_grow(d->m, &s->point, n, &s->cap_point, sizeof(*s->point)) < 0)
                return;
            if (k == 0)
                s->point[n++] = lo_of(&s->out[i]);
            else
                s->point[n++] = hi_of(&s->out[i]) + 1u;
        }
    }
    dfa_sort(s->point, n, sizeof(*s->point), by_number);
    for (uint32_t p = 0; p + 1 < n && !b->failed; p++) {
        uint32_t lo = s->point[p], hi = s->point[p + 1] - 1;

        if (s->point[p + 1] == lo)
            continue;
        start_closure(s);
        build_work(b, to - from);
        for (uint32_t i = from; i < to && lo_of(&s->out[i]) <= lo; i++) {
            if (hi_of(&s->out[i]) >= hi)
                close_over(d, s->out[i].to);
        }
        if (s->n_found)
            emit_edge(d, state, lo, hi, dfa_state(d));
    }
}

/* Adds the edges out[0, @n), which have bytes and special tokens and are sorted, in groups of
 * overlapping ranges. A group of equal ranges, the usual case, is one edge. */
static void emit_bytes(struct dfa *d, uint32_t state, uint32_t n) {
    struct sets *s = &d->s;

    for (uint32_t i = 0, end; i < n && !d->m->b->failed; i = end) {
        unsigned hi = hi_of(&s->out[i]);
        bool equal = true;

        for (end = i + 1; end < n && lo_of(&s->out[end]) <= hi; end++) {
            equal = equal && s->out[end].key == s->out[i].key;
            hi = MAX(hi, hi_of(&s->out[end]));
        }
        if (equal)
            emit_edge(d, state, lo_of(&s->out[i]), hi_of(&s->out[i]), set_behind(d, i, end));
        else
            emit_overlapping(d, state, i, end);
    }
}

static void emit_calls(struct dfa *d, uint32_t state, uint32_t from) {
    struct sets *s = &d->s;
    struct grammar *g = d->m->g;

    for (uint32_t i = from, end; i < s->n_out; i = end) {
        for (end = i + 1; end < s->n_out && s->out[end].key == s->out[i].key;)
            end++;
        uint32_t target = set_behind(d, i, end);

        if (g->state[state].n_calls == UINT16_MAX)
            build_too_complex(d->m->b, "a state has too many alternatives");
        if (d->m->b->failed ||
            maker_grow(d->m, &g->call, g->n_calls, &d->m->cap_calls, sizeof(*g->call)) < 0)
            return;
        g->call[g->n_calls++] = (struct call){(uint32_t)s->out[i].key, target};
        g->state[state].n_calls++;
    }
}

static void emit_state(struct dfa *d, uint32_t local) {
    struct sets *s = &d->s;
    struct maker *m = d->m;
    struct grammar *g = m->g;
    uint32_t state = d->base + local, n_bytes = 0;

    s->n_out = 0;
    g->state[state].edge = g->n_edges;
    g->state[state].call = g->n_calls;
    for (uint32_t i = s->begin[local]; i < s->begin[local + 1]; i++) {
        uint32_t q = s->pool[i], first = s->n_out;

        assert(q < m->n_nfa &&
               (i == s->begin[local] || s->pool[i - 1] < q)); /* sorted, each once */

        /* The start of a plain rule never ends it: its callers step around an empty match. */
        if (q == d->end && (local > 0 || d->loop))
            g->state[state].flags |= STATE_ACCEPT;
        for (uint32_t e = m->nfa_head[q]; e != NFA_NONE; e = m->nfa_edge[e].next) {
            if (s->n_out == s->cap_out &&
                maker_grow(m, &s->out, s->n_out, &s->cap_out, sizeof(*s->out)) < 0)
                return;
            s->out[s->n_out++] = (struct out_edge){dfa_key(&m->nfa_edge[e]), m->nfa_edge[e].to};
            n_bytes += m->nfa_edge[e].kind == NFA_BYTES;
        }
        /* The list of edges begins with the one added last: this restores the order of adding. */
        for (uint32_t k = s->n_out; first + 1 < k; first++) {
            struct out_edge x = s->out[first];

            s->out[first] = s->out[--k];
            s->out[k] = x;
        }
    }
    dfa_sort(s->out, s->n_out, sizeof(*s->out), dfa_by_key);
    emit_bytes(d, state, n_bytes);
    emit_calls(d, state, n_bytes);
}

/* Makes the states of a rule with this body. Returns the first one, the start. */
static uint32_t make_states(struct dfa *d, const struct expr *body) {
    struct maker *m = d->m;
    uint32_t first = d->base;

    m->n_nfa = m->n_nfa_edges = 0;
    m->n_shared = 0;
    hash_index_deinit(&m->shared_index);
    m->nfa_open = NFA_NONE;
    uint32_t start = nfa_state(m);

    d->end = d->loop ? start : nfa_state(m);
    nfa_add(m, body, start, d->end);
    if (!m->b->failed && sets_init(d) == 0) {
        start_closure(&d->s);
        close_over(d, start);
        first = dfa_intern(d, !d->loop);
        for (uint32_t i = 0; i < d->s.n && !m->b->failed; i++)
            emit_state(d, i);
    }
    sets_free(&d->s);
    return first;
}

/* Copies the states of @l, which are deterministic already. A copy of the start comes first, since
 * the start of a rule is not entered again and that of @l may be. */
static void copy_lang(struct dfa *d, const struct lang *l) {
    struct grammar *g = d->m->g;

    for (uint32_t q = 0; q <= l->n; q++) {
        if (add_state(d) < 0)
            return;
    }
    for (uint32_t q = 0; q <= l->n; q++) {
        const struct lang_state *s = &l->state[q ? q - 1 : 0];
        struct state *to = &g->state[d->base + q];

        to->edge = g->n_edges;
        to->call = g->n_calls;
        if (q && (s->accepts & 1))
            to->flags |= STATE_ACCEPT;
        if ((d->flags & STATE_WITHIN) && (s->accepts & LANG_BORDER))
            to->flags |= STATE_BORDER;
        for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++)
            emit_edge(d, d->base + q, l->edge[i].lo, l->edge[i].hi, d->base + 1 + l->edge[i].to);
    }
}

/* Makes a rule whose register counts characters (CALL_WITHIN). */
static void make_within(struct maker *m, uint32_t rule) {
    const struct rule *from = &m->b->rule[rule];
    struct grammar *g = m->g;

    assert(from->body->kind == EXPR_LANG && !from->members && !from->loop);
    struct dfa d = {.m = m, .rule = rule, .base = g->n_states, .flags = STATE_WITHIN};
    uint32_t most = 0;

    copy_lang(&d, from->body->lang);
    for (uint32_t q = 0; q < from->body->lang->n; q++)
        most = MAX(most, from->need[q]);
    g->rule[rule] =
        (struct auto_rule){.start = d.base, .n_states = g->n_states - d.base, .need = most};
}

int dfa_make(struct maker *m, uint32_t rule) {
    struct build *b = m->b;
    struct grammar *g = m->g;
    struct dfa d = {.m = m, .rule = rule, .base = g->n_states, .loop = b->rule[rule].loop};
    const struct expr *body = b->rule[rule].body;
    uint32_t first = d.base;

    if (b->rule[rule].need) {
        make_within(m, rule);
        return b->failed;
    }
    d.flags = (uint8_t)((d.loop ? STATE_LOOP : 0) | (b->rule[rule].members ? STATE_MEMBERS : 0));
    if (body->kind == EXPR_LANG && !d.loop)
        copy_lang(&d, body->lang);
    else
        first = make_states(&d, body);
    if (b->failed)
        return b->failed;
    assert(first == d.base);
    if (d.loop)
        g->state[first].flags |= STATE_BORDER;
    g->rule[rule] = (struct auto_rule){.start = first,
                                       .n_states = g->n_states - d.base,
                                       .loop = d.loop,
                                       .shared = b->rule[rule].shared};
    return 0;
}

int dfa_flat(struct maker *m, const struct expr *e) {
    struct dfa d = {.m = m, .base = m->g->n_states};
    uint32_t first = make_states(&d, e);

    assert(m->b->failed || first == d.base);
    return m->b->failed;
}
