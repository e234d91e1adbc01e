/*
 * lang - intersections and differences of languages as products of automata.
 *
 * A state of a product is a tuple: the state in which each of the automata is after the bytes so
 * far. Example: a string with `"pattern": "^a"` whose schema also says `"not": {"pattern": "b$"}`,
 * with A = texts that begin with a, and B = texts that end with b:
 *
 *     A: 0 --a--> 1, 1 --any--> 1, accepts 1      B: 0 --b--> 1, 0 --else--> 0,
 *                                                    1 --b--> 1, 1 --else--> 0, accepts 1
 *
 *     product: (0,0) --a--> (1,0) --b--> (1,1)    accepts: (1,0) has the bit of A alone,
 *                           (1,0) --else--> (1,0)          (1,1) the bits of A and B
 *                           (1,1) --else--> (1,0)
 *                           (1,1) --b--> (1,1)
 *
 * The product is made state by state from the start, so tuples that no text reaches do not exist.
 * For each state, add_edges() goes through the 256 bytes in steps as wide as all the automata
 * behave alike (lang_step()), and lang_intern() finds the tuple behind a step again by a hash
 * table.
 *
 * Each state of the product remembers which of the languages accept there, as bits. So one product
 * answers every Boolean question about them: lang_select() keeps the states with the wanted bits
 * and those that lead to one. A but not B are the states with the bit of A alone: (1,0) accepts,
 * (1,1) only leads on. There is no complement: a complement on its own is the difference from a
 * language that has everything.
 *
 * `must` keeps products small. In an intersection a text that is no longer a prefix of A is lost,
 * so there is no state for it (`must` has the bit of A). If it is no longer a prefix of B, that is
 * fine for a difference: B's place in the tuple is NO_STATE from then on.
 *
 * Results are minimized (lang_merge.c), since they may be the operands of further products.
 */

#include "grammar/automaton/lang.h"

#include <assert.h>
#include <string.h>

#include "grammar/automaton/nfa.h"

/* Arrays that grow in the heap until they are copied into the arena. */
struct product {
    struct build *b;
    const struct lang *const *in;
    uint32_t n_in;
    uint64_t must;
    /* n_in numbers a state; NO_STATE: the text is no prefix of that language */
    uint32_t *tuple;
    struct lang_state *state;
    struct edge *edge;
    /* states by their tuples */
    struct hash_index known;
    uint32_t n, n_edges, cap_tuple, cap_state, cap_edge;
};

static int lang_grow(struct product *p, void *v, uint32_t need, uint32_t *cap, size_t size) {
    uint32_t bigger = MAX(need, *cap ? *cap * 2 : 64);

    if (need <= *cap)
        return 0;
    if (!array_resize(v, bigger, size))
        return build_no_memory(p->b);
    *cap = bigger;
    return 0;
}

static bool same_tuple(const uint32_t *x, const uint32_t *y, uint32_t n) {
    uint32_t i = 0;

    while (i < n && x[i] == y[i])
        i++;
    return i == n;
}

/* Returns the state of the tuple that lies behind the last one, and makes it when it is new. The
 * result is undefined after the build has failed. */
static uint32_t lang_intern(struct product *p) {
    const uint32_t *t = p->tuple + (size_t)p->n * p->n_in;
    uint32_t h = numbers_hash(t, p->n_in);
    uint64_t accepts = 0;

    HASH_INDEX_EACH(p->known, h, i) {
        if (same_tuple(p->tuple + (size_t)i * p->n_in, t, p->n_in)) {
            build_work(p->b, 2 * p->n_in);
            return i;
        }
    }
    if (p->n >= p->b->limits.max_states)
        build_too_complex(p->b, "an intersection needs more than %u states",
                          p->b->limits.max_states);
    for (uint32_t i = 0; i < p->n_in; i++) {
        if (t[i] != NO_STATE && (p->in[i]->state[t[i]].accepts & 1))
            accepts |= UINT64_C(1) << i;
    }
    if (p->b->failed || lang_grow(p, &p->state, p->n + 1, &p->cap_state, sizeof(*p->state)) < 0)
        return 0;
    p->state[p->n] = (struct lang_state){.accepts = accepts};
    if (hash_index_add(&p->known, h, p->n) < 0)
        build_no_memory(p->b);
    build_work(p->b, 2 + 2 * p->n_in);
    return p->n++;
}

/* The edges of one state of a tuple that have not been passed yet. */
struct ahead {
    const struct edge *e, *end;
};

static void start_at(const struct product *p, uint32_t from, struct ahead *at) {
    for (uint32_t i = 0; i < p->n_in; i++) {
        uint32_t q = p->tuple[(size_t)from * p->n_in + i];
        const struct lang *l = p->in[i];

        at[i] = (struct ahead){NULL, NULL};
        assert(q == NO_STATE || q < l->n);
        if (q != NO_STATE) {
            at[i].e = l->edge + l->state[q].edge;
            at[i].end = at[i].e + l->state[q].n_edges;
        }
    }
}

/* Appends the tuple of states behind byte @c, and sets *@last to the last byte up to which this
 * tuple stays the same. Returns false if no text of a language of `must` goes on with these bytes;
 * there is no state for them then. */
static bool lang_step(struct product *p, struct ahead *at, unsigned c, unsigned *last) {
    uint32_t *to = p->tuple + (size_t)p->n * p->n_in;
    unsigned dead = 0;

    *last = 255;
    for (uint32_t i = 0; i < p->n_in; i++) {
        const struct edge *e = at[i].e, *end = at[i].end;
        unsigned behind = 255; /* the last byte up to which this automaton's state stays the same */

        to[i] = NO_STATE;
        while (e < end && e->hi < c)
            e++;
        at[i].e = e;
        if (e < end) {
            behind = e->lo <= c ? (unsigned)e->hi : e->lo - 1u;
            if (e->lo <= c)
                to[i] = e->to;
        }
        if (to[i] == NO_STATE && (p->must >> i & 1))
            dead = MAX(dead, behind + 1);
        *last = MIN(*last, behind);
    }
    *last = dead ? dead - 1 : *last;
    return !dead;
}

static void add_edges(struct product *p, uint32_t from) {
    struct ahead at[LANG_MAX];

    /* Room for an edge and a state for each byte. */
    if (lang_grow(p, &p->tuple, (p->n + 257) * p->n_in, &p->cap_tuple, sizeof(*p->tuple)) < 0 ||
        lang_grow(p, &p->edge, p->n_edges + 256, &p->cap_edge, sizeof(*p->edge)) < 0)
        return;
    start_at(p, from, at);
    p->state[from].edge = p->n_edges;
    for (unsigned c = 0, last; c < 256 && !p->b->failed; c = last + 1) {
        if (!lang_step(p, at, c, &last)) {
            build_work(p->b, p->n_in);
            continue;
        }
        uint32_t to = lang_intern(p);
        struct edge *before = p->n_edges > p->state[from].edge ? &p->edge[p->n_edges - 1] : NULL;

        if (before && before->to == to && before->hi + 1u == c)
            before->hi = (uint16_t)last;
        else
            p->edge[p->n_edges++] = (struct edge){(uint16_t)c, (uint16_t)last, to};
    }
    p->state[from].n_edges = p->n_edges - p->state[from].edge;
}

/* Asserts the invariants of lang_types.h. */
static void check_lang(const struct lang *l) {
    assert(l->n > 0 || l->n_edges == 0);
    for (uint32_t q = 0; q < l->n; q++) {
        const struct lang_state *s = &l->state[q];
        const struct edge *e = l->edge + s->edge;

        assert(s->edge + s->n_edges <= l->n_edges);
        for (uint32_t i = 0; i < s->n_edges; i++)
            assert(e[i].lo <= e[i].hi && e[i].to < l->n && (i == 0 || e[i - 1].hi < e[i].lo));
    }
}

/* Returns a copy of @from in the arena. */
static const struct lang *lang_copy(struct build *b, const struct lang *from) {
    struct lang *l = build_alloc(b, 1, sizeof(*l));
    struct lang_state *s = build_alloc(b, MAX(from->n, 1u), sizeof(*s));
    struct edge *e = build_alloc(b, MAX(from->n_edges, 1u), sizeof(*e));

    if (!l || !s || !e)
        return NULL;
    if (from->n)
        memcpy(s, from->state, from->n * sizeof(*s));
    if (from->n_edges)
        memcpy(e, from->edge, from->n_edges * sizeof(*e));
    *l = (struct lang){.n = from->n, .n_edges = from->n_edges, .state = s, .edge = e};
    check_lang(l);
    return l;
}

static void product_free(struct product *p) {
    free(p->tuple);
    free(p->state);
    free(p->edge);
    hash_index_deinit(&p->known);
}

/* Makes all states of @p, whose first four fields are set. */
static int make_product(struct product *p) {
    struct build *b = p->b;
    bool alive = true;

    if (p->n_in > LANG_MAX)
        return build_too_complex(b, "more than %u patterns for one value", LANG_MAX - 1);
    assert(p->n_in > 0);
    if (lang_grow(p, &p->tuple, p->n_in, &p->cap_tuple, sizeof(*p->tuple)) < 0)
        return b->failed;
    for (uint32_t i = 0; i < p->n_in; i++) {
        p->tuple[i] = p->in[i]->n ? 0 : NO_STATE;
        alive = alive && (p->in[i]->n || !(p->must >> i & 1));
    }
    if (alive)
        lang_intern(p);
    for (uint32_t i = 0; i < p->n && !b->failed; i++)
        add_edges(p, i);
    return b->failed;
}

const struct lang *lang_product(struct build *b, const struct lang *const *in, uint32_t n,
                                uint64_t must) {
    CLEANUP(product_free) struct product p = {.b = b, .in = in, .n_in = n, .must = must};

    if (make_product(&p) < 0)
        return NULL;
    struct lang made = {p.n, p.n_edges, p.state, p.edge};

    if (lang_merge(b, &made) < 0)
        return NULL;
    return lang_copy(b, &made);
}

/* Adds to alive[] the states from which a state that is alive already can be reached. */
static int lang_find_alive(struct build *b, const struct lang *l, bool *alive) {
    bool changed = true;
    int r = 0;

    /* Backwards: most edges lead to later states, so that few passes suffice. */
    while (r == 0 && changed) {
        changed = false;
        for (uint32_t q = l->n; q-- > 0;) {
            const struct lang_state *s = &l->state[q];

            for (uint32_t i = 0; i < s->n_edges && !alive[q]; i++)
                alive[q] = alive[l->edge[s->edge + i].to] ? (changed = true) : false;
        }
        r = build_work(b, l->n);
    }
    return r;
}

/* Keeps the states whose accepts & @care is @want and the states that lead there. @border: bit of
 * the language that accepts between characters; states with it get LANG_BORDER. 0: no such
 * language. */
static const struct lang *select_states(struct build *b, const struct lang *l, uint64_t care,
                                        uint64_t want, uint64_t border) {
    CLEANUP(freep) bool *alive = calloc(MAX(l->n, 1u), sizeof(*alive));
    CLEANUP(freep) uint32_t *number = calloc(MAX(l->n, 1u), sizeof(*number));
    CLEANUP(freep) struct lang_state *state = calloc(MAX(l->n, 1u), sizeof(*state));
    CLEANUP(freep) struct edge *edge = calloc(MAX(l->n_edges, 1u), sizeof(*edge));
    uint32_t n = 0, n_edges = 0;

    if (!alive || !number || !state || !edge)
        return failed(build_no_memory(b));
    for (uint32_t q = 0; q < l->n; q++)
        alive[q] = (l->state[q].accepts & care) == want;
    if (lang_find_alive(b, l, alive) < 0)
        return NULL;
    for (uint32_t q = 0; q < l->n && alive[0]; q++)
        number[q] = alive[q] ? n++ : NO_STATE;
    assert(n == 0 || number[0] == 0); /* the start stays the first */
    for (uint32_t q = 0; q < l->n && alive[0]; q++) {
        const struct lang_state *s = &l->state[q];

        if (!alive[q])
            continue;
        struct lang_state *to = &state[number[q]];

        *to = (struct lang_state){.edge = n_edges, .accepts = (s->accepts & care) == want};
        if (s->accepts & border)
            to->accepts |= LANG_BORDER;
        for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
            struct edge e = l->edge[i];

            if (!alive[e.to])
                continue;
            e.to = number[e.to];
            edge[n_edges++] = e;
        }
        to->n_edges = n_edges - to->edge;
    }
    struct lang made = {n, n_edges, state, edge};

    if (build_work(b, l->n + l->n_edges) < 0 || lang_merge(b, &made) < 0)
        return NULL;
    return lang_copy(b, &made);
}

const struct lang *lang_select(struct build *b, const struct lang *l, uint64_t care, uint64_t want,
                               uint64_t border) {
    return select_states(b, l, care, want, border);
}

static const struct lang *meet(struct build *b, const struct lang *const *in, uint32_t n,
                               const struct lang *const *not_in, uint32_t n_not, uint64_t border) {
    const struct lang *all[LANG_MAX];

    if (b->failed)
        return NULL;
    if (n + n_not > LANG_MAX)
        return failed(build_too_complex(b, "more than %u patterns for one value", LANG_MAX - 1));
    assert(n > 0);
    memcpy(all, in, n * sizeof(*in));
    if (n_not)
        memcpy(all + n, not_in, n_not * sizeof(*in));
    uint64_t must = (UINT64_C(1) << n) - 1;
    struct product p = {.b = b, .in = all, .n_in = n + n_not, .must = must};
    int r = make_product(&p);
    struct lang made = {p.n, p.n_edges, p.state, p.edge};

    const struct lang *l = r == 0 ? select_states(b, &made, UINT64_MAX, must, border) : NULL;

    product_free(&p);
    return l;
}

const struct lang *lang_meet(struct build *b, const struct lang *const *in, uint32_t n,
                             const struct lang *const *not_in, uint32_t n_not) {
    return meet(b, in, n, not_in, n_not, 0);
}

const struct lang *lang_meet_strings(struct build *b, const struct lang *const *in, uint32_t n,
                                     const struct lang *const *not_in, uint32_t n_not) {
    const struct lang *all[LANG_MAX];

    if (n + n_not >= LANG_MAX)
        return failed(build_too_complex(b, "more than %u patterns for one value", LANG_MAX - 1));
    memcpy(all + 1, in, n * sizeof(*in));
    all[0] = lang_strings(b);
    return meet(b, all, n + 1, not_in, n_not, 1);
}

bool lang_matches(const struct lang *l, const uint8_t *text, size_t n) {
    uint32_t q = 0;

    if (l->n == 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct lang_state *s = &l->state[q];
        const struct edge *e = l->edge + s->edge, *end = e + s->n_edges;

        while (e < end && e->hi < text[i])
            e++;
        if (e == end || e->lo > text[i])
            return false;
        q = e->to;
    }
    return l->state[q].accepts & 1;
}

const struct lang *lang_texts(struct build *b) {
    if (!b->texts_lang)
        b->texts_lang = lang_of(b, expr_repeat(b, expr_any_char(b, CHARS_TEXT), 0, NO_MAX));
    return b->texts_lang;
}

/* Returns the texts in which b->stop does not occur. */
static const struct lang *texts_without_stop(struct build *b) {
    const struct lang *all = lang_texts(b);
    struct expr *any = lang_expr(b, all);
    const struct lang *with = lang_of(b, expr_seq3(b, any, expr_str(b, b->stop), any));

    if (!all || !with)
        return NULL;
    return lang_meet(b, &all, 1, &with, 1);
}

const struct lang *lang_strings(struct build *b) {
    const struct lang **l = &b->strings_lang[b->notation];

    if (*l)
        return *l;
    if (b->notation == NOTATION_JSON)
        *l = lang_of(b, expr_repeat(b, json_canonical_char(b), 0, NO_MAX));
    else
        *l = texts_without_stop(b);
    return *l;
}

const struct lang *lang_keys(struct build *b) {
    const struct lang **l = &b->keys_lang[b->notation];

    if (!*l)
        *l = lang_of(b, json_long_key(b));
    return *l;
}

/* State q of `all` behind n characters has number n * all->n + q. An edge to an accepting state
 * completes a character, since a string may end between characters and nowhere else. */
const struct lang *lang_strings_of(struct build *b, uint32_t min, uint32_t max) {
    const struct lang *all = lang_strings(b);
    struct lang *l = build_alloc(b, 1, sizeof(*l));
    uint32_t last = max == NO_MAX ? min : max;

    if (!l || !all)
        return NULL;
    if (((uint64_t)last + 1) * all->n > b->limits.max_states)
        return failed(build_too_complex(b, "an intersection needs more than %u states",
                                        b->limits.max_states));
    assert(min <= max);
    *l = (struct lang){.n = (last + 1) * all->n};
    l->state = build_alloc(b, l->n, sizeof(*l->state));
    l->edge = build_alloc(b, (last + 1) * all->n_edges, sizeof(*l->edge));
    if (!l->state || !l->edge)
        return NULL;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct lang_state *from = &all->state[i % all->n];
        uint32_t n = i / all->n;
        bool full = n == last && max != NO_MAX && (from->accepts & 1);

        l->state[i] = (struct lang_state){.edge = l->n_edges,
                                          .n_edges = full ? 0 : from->n_edges,
                                          .accepts = n >= min ? from->accepts & 1 : 0};
        for (uint32_t e = 0; e < l->state[i].n_edges; e++) {
            struct edge edge = all->edge[from->edge + e];
            uint32_t more = (all->state[edge.to].accepts & 1) && n < last;

            edge.to += (n + more) * all->n;
            l->edge[l->n_edges++] = edge;
        }
    }
    if (build_work(b, (uint64_t)l->n + l->n_edges) < 0)
        return NULL;
    return l;
}

struct expr *lang_expr(struct build *b, const struct lang *l) {
    if (!l)
        return NULL;
    if (l->n == 0)
        return expr_never(b);
    struct expr *e = expr_empty(b);

    if (e) {
        e->kind = EXPR_LANG;
        e->lang = l;
        e->size = l->n;
    }
    return e;
}

/* Sets need[q] to the fewest characters from state q to the end. Most edges lead to later states,
 * so going backwards takes few passes. */
static int find_needs(struct build *b, const struct lang *l, uint32_t *need) {
    bool changed = true;
    int r = 0;

    for (uint32_t q = 0; q < l->n; q++)
        need[q] = l->state[q].accepts & 1 ? 0 : l->n;
    while (r == 0 && changed) {
        changed = false;
        for (uint32_t q = l->n; q-- > 0;) {
            const struct lang_state *s = &l->state[q];

            for (uint32_t i = s->edge; i < s->edge + s->n_edges && need[q]; i++) {
                uint32_t to = l->edge[i].to;
                uint32_t n = need[to] + ((l->state[to].accepts & LANG_BORDER) != 0);

                changed |= n < need[q];
                need[q] = MIN(need[q], n);
            }
        }
        r = build_work(b, l->n + l->n_edges);
    }
    return r;
}

struct expr *lang_within(struct build *b, const struct lang *l, uint32_t max) {
    uint32_t *need = l ? build_alloc(b, MAX(l->n, 1u), sizeof(*need)) : NULL;
    struct expr *body = lang_expr(b, l);
    uint32_t rule;

    if (!need || !body || find_needs(b, l, need) < 0)
        return NULL;
    if (l->n == 0 || need[0] > max)
        return expr_never(b);
    if (build_rule(b, NULL, &rule) < 0)
        return NULL;
    assert(need[0] <= max); /* some text fits */
    b->rule[rule].body = body;
    b->rule[rule].need = need;
    return expr_within(b, rule, max);
}

/* Returns the language of the states and edges of @g, with as few states as possible. @empty: the
 * empty text belongs to it. NULL: the build has failed. */
static const struct lang *lang_from_states(struct build *b, const struct grammar *g, bool empty) {
    CLEANUP(freep) struct lang_state *state = calloc(MAX(g->n_states, 1u), sizeof(*state));

    if (!state)
        return failed(build_no_memory(b));
    for (uint32_t q = 0; q < g->n_states; q++) {
        const struct state *s = &g->state[q];

        assert(s->n_calls == 0);
        state[q] = (struct lang_state){s->edge, s->n_edges, s->flags & STATE_ACCEPT ? 1 : 0};
    }
    if (empty)
        state[0].accepts = 1;
    struct lang made = {g->n_states, g->n_edges, state, g->edge};

    if (lang_merge(b, &made) < 0)
        return NULL;
    return lang_copy(b, &made);
}

const struct lang *lang_of(struct build *b, const struct expr *e) {
    struct grammar g = {0};
    struct maker m = {.b = b, .g = &g, .flat = true};
    const struct lang *l = NULL;

    if (!e)
        return NULL;
    if (e->kind == EXPR_LANG)
        return e->lang;
    if (dfa_flat(&m, e) == 0)
        l = lang_from_states(b, &g, expr_nullable(b, e));
    maker_free(&m);
    free(g.state);
    free(g.edge);
    return l;
}
