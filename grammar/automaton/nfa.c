/*
 * nfa - expressions to an NFA: Thompson's construction, and three decisions that make the automaton
 * small or fast.
 *
 * Repetition. x{m,n} is copied while that is small: determinism then settles everything. Beyond
 * that it becomes a call with a counter in its frame, which takes no states but may leave several
 * counts open at once where it is not clear where one x ends and the next begins.
 *
 * Characters. One character repeated more than a few times is a loop rule (automaton.h): a counter
 * in a register. The characters of JSON strings are always that, also without a limit, so that all
 * strings share their states.
 *
 * Calls. A small rule of EBNF without recursion is copied into its caller. Rules that the readers
 * of schemas made (numbers, patterns, values that are used twice) stay calls: they exist to be
 * shared.
 */

#include "grammar/automaton/nfa.h"
#include "grammar/expr/lang_types.h"

#include <assert.h>
#include <string.h>

#define UNROLL_MAX 2048 /* states: a repetition up to here is copied, beyond it is a counted call */
#define ROUNDS_MAX 16384 /* the same where one of what is repeated is as few states as can be */
#define INLINE_MAX 1024  /* states: a rule of EBNF up to here is copied where it is called */
#define INLINE_DEPTH 32
#define NOT_FLAT UINT32_MAX

struct loop_rule {
    struct loop_rule *next;
    const struct expr *atom;
    uint32_t rule;
};

int maker_grow(struct maker *m, void *v, uint32_t n, uint32_t *cap, size_t size) {
    uint32_t bigger = *cap ? *cap * 2 : 256;

    if (n < *cap)
        return 0;
    if (!array_resize(v, bigger, size))
        return build_no_memory(m->b);
    *cap = bigger;
    return 0;
}

int nfa_state(struct maker *m, uint32_t *out) {
    if (m->n_nfa > m->b->limits.max_states * 4ull)
        return build_too_complex(m->b, "the grammar needs more than %u states",
                                 m->b->limits.max_states);
    int r = maker_grow(m, &m->nfa_head, m->n_nfa, &m->cap_nfa, sizeof(*m->nfa_head));

    if (r == 0)
        r = maker_grow(m, &m->nfa_empty, m->n_nfa, &m->cap_nfa_empty, sizeof(*m->nfa_empty));
    if (r < 0)
        return r;
    m->nfa_head[m->n_nfa] = m->nfa_empty[m->n_nfa] = NFA_NONE;
    *out = m->n_nfa++;
    return build_work(m->b, 1);
}

static int add_edge(struct maker *m, uint32_t from, struct nfa_edge e) {
    int r = maker_grow(m, &m->nfa_edge, m->n_nfa_edges, &m->cap_nfa_edges, sizeof(e));

    if (r < 0)
        return r;
    assert(from < m->n_nfa && e.to < m->n_nfa);
    uint32_t *head = e.kind == NFA_EMPTY ? &m->nfa_empty[from] : &m->nfa_head[from];

    e.next = *head;
    *head = m->n_nfa_edges;
    m->nfa_edge[m->n_nfa_edges++] = e;
    return build_work(m->b, 1);
}

int nfa_add_empty(struct maker *m, uint32_t from, uint32_t to) {
    return add_edge(m, from, (struct nfa_edge){.kind = NFA_EMPTY, .to = to});
}

int nfa_add_bytes(struct maker *m, uint32_t from, unsigned lo, unsigned hi, uint32_t to) {
    return add_edge(
        m, from,
        (struct nfa_edge){.kind = NFA_BYTES, .lo = (uint16_t)lo, .hi = (uint16_t)hi, .to = to});
}

static bool same_desc(const struct call_desc *x, const struct call_desc *y) {
    return x->rule == y->rule && x->min == y->min && x->max == y->max && x->kind == y->kind &&
           x->names == y->names;
}

static int add_call(struct maker *m, struct call_desc d, uint32_t from, uint32_t to) {
    struct grammar *g = m->g;
    uint32_t i = g->n_descs;

    /* The last ones are searched: equal calls in one place must be one symbol, elsewhere it only
     * saves room. */
    for (uint32_t back = 0; back < 64 && back < g->n_descs; back++) {
        if (same_desc(&g->desc[g->n_descs - 1 - back], &d)) {
            i = g->n_descs - 1 - back;
            break;
        }
    }
    if (i == g->n_descs) {
        int r = maker_grow(m, &g->desc, g->n_descs, &m->cap_descs, sizeof(d));

        if (r < 0)
            return r;
        g->desc[g->n_descs++] = d;
    }
    return add_edge(m, from, (struct nfa_edge){.kind = NFA_CALL, .desc = i, .to = to});
}

static int add_literal(struct maker *m, const uint8_t *bytes, uint32_t n, uint32_t from,
                       uint32_t to) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t next = to;
        int r = i + 1 < n ? nfa_state(m, &next) : 0;

        if (r == 0)
            r = nfa_add_bytes(m, from, bytes[i], bytes[i], next);
        if (r < 0)
            return r;
        from = next;
    }
    return 0;
}

static int add_token(struct maker *m, uint32_t id, uint32_t from, uint32_t to) {
    struct grammar *g = m->g;
    uint32_t i = 0;

    while (i < g->n_tokens && g->token[i] != (int32_t)id)
        i++;
    if (i == g->n_tokens) {
        int r = maker_grow(m, &g->token, g->n_tokens, &m->cap_tokens, sizeof(*g->token));

        if (r < 0)
            return r;
        if (i >= 4096)
            return build_too_complex(m->b, "the grammar names more than 4096 special tokens");
        g->token[g->n_tokens++] = (int32_t)id;
    }
    return nfa_add_bytes(m, from, TOKEN_SYMBOL + i, TOKEN_SYMBOL + i, to);
}

static int loop_rule(struct maker *m, struct expr *atom, uint32_t *rule) {
    struct build *b = m->b;
    uint64_t n = 0;

    for (struct loop_rule *l = b->loops; l; l = l->next, n++) {
        if (l->atom == atom || expr_same_chars(l->atom, atom)) {
            *rule = l->rule;
            return build_work(b, n);
        }
    }
    struct loop_rule *l = build_alloc(b, 1, sizeof(*l));

    if (!l || build_rule(b, NULL, rule) < 0)
        return b->failed;
    *l = (struct loop_rule){.next = b->loops, .atom = atom, .rule = *rule};
    b->loops = l;
    b->rule[*rule].body = atom;
    b->rule[*rule].loop = true;
    for (int s = SHARED_NONE + 1; s < SHARED_LOOPS; s++) {
        if (b->shared_atom[s] == atom)
            b->rule[*rule].shared = (uint8_t)s;
    }
    return build_work(b, n);
}

static int add_loop(struct maker *m, struct expr *atom, uint32_t min, uint32_t max, uint32_t from,
                    uint32_t to) {
    struct call_desc d = {.kind = CALL_COUNTED, .min = MAX(min, 1u), .max = max};

    assert(min <= max && max > 0);
    int r = loop_rule(m, atom, &d.rule);

    if (r == 0 && min == 0)
        r = nfa_add_empty(m, from, to);
    return r < 0 ? r : add_call(m, d, from, to);
}

static int add_names(struct maker *m, const struct names *names, uint32_t from, uint32_t to) {
    struct call_desc d = {.kind = CALL_NAMES, .names = names};
    struct expr *atom = json_canonical_char(m->b);
    int r = atom ? loop_rule(m, atom, &d.rule) : build_no_memory(m->b);

    if (r == 0 && !names->node[0].end)
        r = nfa_add_empty(m, from, to);
    return r < 0 ? r : add_call(m, d, from, to);
}

/* Copies, as many as it has at least, then optional ones, or any number of them. */
static int add_copies(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    const struct expr *x = e->child[0];
    uint32_t n = e->min, more = e->max == NO_MAX ? NO_MAX : e->max - e->min, next;

    assert(e->kind == EXPR_REPEAT && e->min <= e->max);
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < n; i++, from = next) {
        r = nfa_state(m, &next);
        if (r == 0)
            r = nfa_add(m, x, from, next);
    }
    if (r == 0 && more == NO_MAX) {
        r = nfa_state(m, &next);
        if (r == 0)
            r = nfa_add_empty(m, from, next);
        if (r == 0)
            r = nfa_add(m, x, next, next);
        if (e->open)
            m->nfa_open = next;
        from = next;
        more = 0;
    }
    for (uint32_t i = 0; r == 0 && i < more; i++, from = next) {
        r = nfa_add_empty(m, from, to);
        if (r == 0)
            r = nfa_state(m, &next);
        if (r == 0)
            r = nfa_add(m, x, from, next);
    }
    return r < 0 ? r : nfa_add_empty(m, from, to);
}

static int add_counted_call(struct maker *m, struct expr *x, uint32_t min, uint32_t max,
                            uint32_t from, uint32_t to) {
    struct call_desc d = {.kind = CALL_REPEAT, .min = MAX(min, 1u), .max = max};
    bool nullable = expr_nullable(m->b, x);
    int r = build_rule(m->b, NULL, &d.rule);

    if (r < 0)
        return r;
    if (nullable)
        d.min = 1;
    assert(d.min <= d.max);
    m->b->rule[d.rule].body = x;
    m->b->rule[d.rule].nullable = nullable;
    if (min == 0 || nullable)
        r = nfa_add_empty(m, from, to);
    return r < 0 ? r : add_call(m, d, from, to);
}

static int add_repeat(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    struct expr *x = e->child[0];
    uint32_t most = e->max == NO_MAX ? e->min : e->max;

    if (m->flat)
        return add_copies(m, e, from, to);
    if (x->atom) {
        bool shared = x == m->b->shared_atom[SHARED_JSON_CHARS] ||
                      x == m->b->shared_atom[SHARED_JSON_CANONICAL];

        if (shared || most > ATOM_UNROLL)
            return add_loop(m, x, e->min, e->max, from, to);
    } else if ((uint64_t)most * x->size > (x->kind == EXPR_LANG ? ROUNDS_MAX : UNROLL_MAX) &&
               most > 1) {
        return add_counted_call(m, x, e->min, e->max, from, to);
    }
    return add_copies(m, e, from, to);
}

int nfa_add_sequence(struct maker *m, struct expr *const *x, uint32_t n, uint32_t from,
                     uint32_t to) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t next = to;
        int r = i + 1 < n ? nfa_state(m, &next) : 0;

        if (r == 0)
            r = nfa_add(m, x[i], from, next);
        if (r < 0)
            return r;
        from = next;
    }
    return 0;
}

/* States that @e takes when all its calls are copied; NOT_FLAT when they cannot be: recursion, or
 * too many. */
static uint32_t flat_size(struct maker *m, const struct expr *e, uint32_t depth) {
    struct rule *rule = e->kind == EXPR_CALL ? &m->b->rule[e->id] : NULL;
    uint64_t size = 1;

    if (e->kind == EXPR_LIST || e->kind == EXPR_NAMES || e->kind >= EXPR_ONCE ||
        depth > INLINE_DEPTH || build_work(m->b, 1) < 0)
        return NOT_FLAT;
    if (rule) {
        if (!rule->may_copy)
            return NOT_FLAT;
        if (rule->flat_size == 0) {
            rule->flat_size = NOT_FLAT; /* while it is open: what calls itself is not flat */
            rule->flat_size = flat_size(m, rule->body, depth + 1);
        }
        return rule->flat_size;
    }
    if (e->kind != EXPR_SEQ && e->kind != EXPR_ALT && e->kind != EXPR_REPEAT)
        return e->size;
    for (uint32_t i = 0; i < (e->kind == EXPR_REPEAT ? 1 : e->n) && size <= INLINE_MAX; i++) {
        uint32_t n = flat_size(m, e->child[i], depth + 1);

        if (n == NOT_FLAT)
            return NOT_FLAT;
        size += n;
    }
    if (e->kind == EXPR_REPEAT)
        size *= e->max == NO_MAX ? (uint64_t)e->min + 1 : e->max;
    return size > INLINE_MAX ? NOT_FLAT : (uint32_t)size;
}

/* Small rules without recursion become part of their caller: determinism then settles what would
 * otherwise be several configurations. */
static int add_rule_call(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    int r = 0;

    if (m->flat || flat_size(m, e, 0) != NOT_FLAT)
        return nfa_add(m, m->b->rule[e->id].body, from, to);
    if (m->b->rule[e->id].nullable)
        r = nfa_add_empty(m, from, to);
    return r < 0 ? r : add_call(m, (struct call_desc){.rule = e->id}, from, to);
}

/* Makes a state of its own for the start, since it may be entered again. */
static int add_lang(struct maker *m, const struct lang *l, uint32_t from, uint32_t to) {
    uint32_t base = m->n_nfa, q;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < l->n; i++)
        r = nfa_state(m, &q);
    if (r == 0 && l->n)
        r = nfa_add_empty(m, from, base);
    for (uint32_t i = 0; r == 0 && i < l->n; i++) {
        const struct lang_state *s = &l->state[i];

        if (s->accepts & 1)
            r = nfa_add_empty(m, base + i, to);
        for (uint32_t e = s->edge; r == 0 && e < s->edge + s->n_edges; e++)
            r = nfa_add_bytes(m, base + i, l->edge[e].lo, l->edge[e].hi, base + l->edge[e].to);
    }
    return r;
}

/* Without calls: state i behind n characters is number n * l->n + i. */
static int add_within_flat(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    const struct rule *rule = &m->b->rule[e->id];
    assert(rule->need && rule->body->kind == EXPR_LANG && rule->need[0] <= e->max);
    const struct lang *l = rule->body->lang;
    uint32_t base = m->n_nfa, q;
    int r = 0;

    for (uint64_t i = 0; r == 0 && i < (uint64_t)l->n * (e->max + 1ull); i++)
        r = nfa_state(m, &q);
    if (r == 0)
        r = nfa_add_empty(m, from, base);
    for (uint32_t n = 0; r == 0 && n <= e->max; n++) {
        for (uint32_t i = 0; r == 0 && i < l->n; i++) {
            const struct lang_state *s = &l->state[i];

            if (s->accepts & 1)
                r = nfa_add_empty(m, base + n * l->n + i, to);
            for (uint32_t k = s->edge; r == 0 && k < s->edge + s->n_edges; k++) {
                const struct edge *x = &l->edge[k];
                uint32_t behind = n + ((l->state[x->to].accepts & LANG_BORDER) != 0);

                if (behind + rule->need[x->to] <= e->max)
                    r = nfa_add_bytes(m, base + n * l->n + i, x->lo, x->hi,
                                      base + behind * l->n + x->to);
            }
        }
    }
    return r;
}

static int add_within(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    struct call_desc d = {.kind = CALL_WITHIN, .rule = e->id, .max = e->max};
    int r = 0;

    if (m->flat)
        return add_within_flat(m, e, from, to);
    if (expr_nullable(m->b, e))
        r = nfa_add_empty(m, from, to);
    return r < 0 ? r : add_call(m, d, from, to);
}

int nfa_add(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    int r = 0;

    switch ((enum expr_kind)e->kind) {
    case EXPR_EMPTY:
        return nfa_add_empty(m, from, to);
    case EXPR_NEVER:
        return 0;
    case EXPR_BYTES:
        return add_literal(m, e->bytes, e->n, from, to);
    case EXPR_CHARS:
        return nfa_add_chars(m, e, from, to);
    case EXPR_SEQ:
        return nfa_add_sequence(m, e->child, e->n, from, to);
    case EXPR_ALT:
        for (uint32_t i = 0; r == 0 && i < e->n; i++)
            r = nfa_add_alternative(m, e->child[i], from, to);
        return r;
    case EXPR_REPEAT:
        return add_repeat(m, e, from, to);
    case EXPR_CALL:
        return add_rule_call(m, e, from, to);
    case EXPR_TOKEN:
        return add_token(m, e->id, from, to);
    case EXPR_LIST:
        return nfa_add_list(m, e->list, from, to);
    case EXPR_NAMES:
        return add_names(m, e->names, from, to);
    case EXPR_ONCE:
    case EXPR_MEMBERS:
        return add_call(m,
                        (struct call_desc){.kind = e->kind == EXPR_ONCE ? CALL_ONCE : CALL_MEMBERS,
                                           .rule = e->id,
                                           .min = e->min,
                                           .max = e->max},
                        from, to);
    case EXPR_LANG:
        return add_lang(m, e->lang, from, to);
    case EXPR_WITHIN:
        return add_within(m, e, from, to);
    case EXPR_ANCHOR:
        assert(false);
    }
    return r;
}
