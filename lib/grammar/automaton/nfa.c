/*
 * nfa - turns the expression of a rule into an NFA, by Thompson's construction.
 *
 * nfa_add(e, from, to) adds states and edges such that the ways from @from to @to read exactly the
 * texts of @e. A literal is a chain of edges. A sequence puts its parts one behind the other, with
 * a new state between two of them. Alternatives lie side by side between the same two states. A
 * repetition without a maximum is a state to which the operand returns. Example, `"[" digit* "]"`
 * from state 0 to state 1 (an arrow without a symbol is an empty edge):
 *
 *     0 --[--> 2 ---> 4 ---> 3 --]--> 1         4 --0..9--> 4
 *
 * dfa.c then makes the NFA deterministic. Calls of other rules are symbols like bytes.
 *
 * Three decisions keep the automaton small or make it fast:
 *
 * Repetition. x{m,n} is n copies of x while that is small: the DFA then knows the count at each
 * state, and nothing is ambiguous. Beyond UNROLL_MAX states it becomes a call with a counter in its
 * frame (CALL_REPEAT). That takes no further states, but where one cannot see at which byte one x
 * ends and the next begins, each possible count is a configuration of its own.
 *
 * Characters. One character that is repeated more than a few times is a loop rule (automaton.h),
 * which counts in a register. The characters of JSON strings are always read by such a loop, also
 * without a limit, so that all strings of all schemas share their states and token classes.
 *
 * Calls. A small rule of EBNF or Lark without recursion is copied into its caller, so that the DFA
 * settles what would otherwise be several configurations. Rules that the readers of schemas made
 * (numbers, patterns, values that are used twice) stay calls: they exist to be shared.
 */

#include "grammar/automaton/nfa.h"

#include <assert.h>

#include "grammar/expr/lang_types.h"

#define UNROLL_MAX 2048 /* states: a repetition up to here is copied, beyond it is a counted call */
#define ROUNDS_MAX 16384 /* most copies of an operand that is a minimal automaton */
#define INLINE_MAX 1024  /* states: a rule of EBNF up to here is copied where it is called */
#define INLINE_DEPTH 32
#define NOT_FLAT UINT32_MAX

/* The rule that repeats one character of the set `atom`; a build has one for each such set. */
struct loop_rule {
    struct loop_rule *next;
    const struct expr *atom;
    uint32_t rule;
};

void maker_free(struct maker *m) {
    free(m->nfa_edge);
    free(m->nfa_head);
    free(m->nfa_empty);
    free(m->shared);
    hash_index_deinit(&m->shared_index);
}

int maker_grow(struct maker *m, void *v, uint32_t n, uint32_t *cap, size_t size) {
    uint32_t bigger = *cap ? *cap * 2 : 256;

    if (n < *cap)
        return 0;
    if (!array_resize(v, bigger, size))
        return build_no_memory(m->b);
    *cap = bigger;
    return 0;
}

uint32_t nfa_state(struct maker *m) {
    struct build *b = m->b;

    if (m->n_nfa > b->limits.max_states * 4ull)
        build_too_complex(b, "the grammar needs more than %u states", b->limits.max_states);
    if (b->failed || maker_grow(m, &m->nfa_head, m->n_nfa, &m->cap_nfa, sizeof(*m->nfa_head)) < 0 ||
        maker_grow(m, &m->nfa_empty, m->n_nfa, &m->cap_nfa_empty, sizeof(*m->nfa_empty)) < 0)
        return 0;
    m->nfa_head[m->n_nfa] = m->nfa_empty[m->n_nfa] = NFA_NONE;
    build_work(b, 1);
    return m->n_nfa++;
}

static void add_edge(struct maker *m, uint32_t from, struct nfa_edge e) {
    if (m->b->failed ||
        maker_grow(m, &m->nfa_edge, m->n_nfa_edges, &m->cap_nfa_edges, sizeof(e)) < 0)
        return;
    assert(from < m->n_nfa && e.to < m->n_nfa);
    uint32_t *head = e.kind == NFA_EMPTY ? &m->nfa_empty[from] : &m->nfa_head[from];

    e.next = *head;
    *head = m->n_nfa_edges;
    m->nfa_edge[m->n_nfa_edges++] = e;
    build_work(m->b, 1);
}

void nfa_add_empty(struct maker *m, uint32_t from, uint32_t to) {
    add_edge(m, from, (struct nfa_edge){.kind = NFA_EMPTY, .to = to});
}

void nfa_add_bytes(struct maker *m, uint32_t from, unsigned lo, unsigned hi, uint32_t to) {
    add_edge(
        m, from,
        (struct nfa_edge){.kind = NFA_BYTES, .lo = (uint16_t)lo, .hi = (uint16_t)hi, .to = to});
}

static bool same_desc(const struct call_desc *x, const struct call_desc *y) {
    return x->rule == y->rule && x->min == y->min && x->max == y->max && x->kind == y->kind &&
           x->names == y->names;
}

static void nfa_add_call(struct maker *m, struct call_desc d, uint32_t from, uint32_t to) {
    struct grammar *g = m->g;
    uint32_t i = g->n_descs;

    if (m->b->failed)
        return;
    /* Searches the latest descriptions for an equal one. Equal calls that begin at one place must
     * have one description, or the DFA would take them for different symbols; finding those further
     * back would only save room. */
    for (uint32_t back = 0; back < 64 && back < g->n_descs; back++) {
        if (same_desc(&g->desc[g->n_descs - 1 - back], &d)) {
            i = g->n_descs - 1 - back;
            break;
        }
    }
    if (i == g->n_descs) {
        if (maker_grow(m, &g->desc, g->n_descs, &m->cap_descs, sizeof(d)) < 0)
            return;
        g->desc[g->n_descs++] = d;
    }
    add_edge(m, from, (struct nfa_edge){.kind = NFA_CALL, .desc = i, .to = to});
}

void nfa_add_literal(struct maker *m, const uint8_t *bytes, size_t n, uint32_t from, uint32_t to) {
    for (size_t i = 0; i < n && !m->b->failed; i++) {
        uint32_t next = i + 1 < n ? nfa_state(m) : to;

        nfa_add_bytes(m, from, bytes[i], bytes[i], next);
        from = next;
    }
}

static void nfa_add_token(struct maker *m, uint32_t id, uint32_t from, uint32_t to) {
    struct grammar *g = m->g;
    uint32_t i = 0;

    while (i < g->n_tokens && g->token[i] != (int32_t)id)
        i++;
    if (i == g->n_tokens) {
        if (i >= NFA_TOKENS_MAX)
            build_too_complex(m->b, "the grammar names more than %u special tokens",
                              NFA_TOKENS_MAX);
        if (m->b->failed ||
            maker_grow(m, &g->token, g->n_tokens, &m->cap_tokens, sizeof(*g->token)) < 0)
            return;
        g->token[g->n_tokens++] = (int32_t)id;
    }
    nfa_add_bytes(m, from, TOKEN_SYMBOL + i, TOKEN_SYMBOL + i, to);
}

/* Returns the loop rule of @atom, and makes it when it is new. */
static uint32_t loop_rule(struct maker *m, struct expr *atom) {
    struct build *b = m->b;
    struct loop_rule *l = b->loops;
    uint64_t n = 0;

    for (; l && l->atom != atom && !expr_same_chars(l->atom, atom); l = l->next)
        n++;
    build_work(b, n);
    if (l)
        return l->rule;
    uint32_t rule;

    l = build_alloc(b, 1, sizeof(*l));
    if (!l || build_rule(b, NULL, &rule) < 0)
        return NO_RULE;
    *l = (struct loop_rule){.next = b->loops, .atom = atom, .rule = rule};
    b->loops = l;
    b->rule[rule].body = atom;
    b->rule[rule].loop = true;
    for (int s = SHARED_NONE + 1; s < SHARED_LOOPS; s++) {
        if (b->shared_atom[s] == atom)
            b->rule[rule].shared = (uint8_t)s;
    }
    return rule;
}

static void nfa_add_loop(struct maker *m, struct expr *atom, uint32_t min, uint32_t max,
                         uint32_t from, uint32_t to) {
    struct call_desc d = {
        .kind = CALL_COUNTED, .rule = loop_rule(m, atom), .min = MAX(min, 1u), .max = max};

    assert(min <= max && max > 0);
    if (min == 0)
        nfa_add_empty(m, from, to);
    nfa_add_call(m, d, from, to);
}

static void nfa_add_names(struct maker *m, const struct names *names, uint32_t from, uint32_t to) {
    struct expr *atom = json_canonical_char(m->b);

    if (!atom)
        return;
    struct call_desc d = {.kind = CALL_NAMES, .rule = loop_rule(m, atom), .names = names};

    if (!names->node[0].end)
        nfa_add_empty(m, from, to);
    nfa_add_call(m, d, from, to);
}

/* Adds `min` copies of the operand, then optional copies up to `max`, or a loop if there is no
 * maximum. */
static void add_copies(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    const struct build *b = m->b;
    const struct expr *x = e->child[0];
    uint32_t n = e->min, more = e->max == NO_MAX ? NO_MAX : e->max - e->min, next;

    assert(e->kind == EXPR_REPEAT && e->min <= e->max);
    for (uint32_t i = 0; i < n && !b->failed; i++, from = next) {
        next = nfa_state(m);
        nfa_add(m, x, from, next);
    }
    if (more == NO_MAX) {
        next = nfa_state(m);
        nfa_add_empty(m, from, next);
        nfa_add(m, x, next, next);
        if (e->open)
            m->nfa_open = next;
        from = next;
        more = 0;
    }
    for (uint32_t i = 0; i < more && !b->failed; i++, from = next) {
        nfa_add_empty(m, from, to);
        next = nfa_state(m);
        nfa_add(m, x, from, next);
    }
    nfa_add_empty(m, from, to);
}

static void add_counted_call(struct maker *m, struct expr *x, uint32_t min, uint32_t max,
                             uint32_t from, uint32_t to) {
    bool nullable = expr_nullable(m->b, x);
    struct call_desc d = {.kind = CALL_REPEAT, .min = nullable ? 1 : MAX(min, 1u), .max = max};

    if (build_rule(m->b, NULL, &d.rule) < 0)
        return;
    assert(d.min <= d.max);
    m->b->rule[d.rule].body = x;
    m->b->rule[d.rule].nullable = nullable;
    if (min == 0 || nullable)
        nfa_add_empty(m, from, to);
    nfa_add_call(m, d, from, to);
}

static void add_repeat(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    struct expr *x = e->child[0];
    uint32_t most = e->max == NO_MAX ? e->min : e->max;
    bool shared =
        x == m->b->shared_atom[SHARED_JSON_CHARS] || x == m->b->shared_atom[SHARED_JSON_CANONICAL];

    if (!m->flat && x->atom && (shared || most > ATOM_UNROLL))
        nfa_add_loop(m, x, e->min, e->max, from, to);
    else if (!m->flat && !x->atom && most > 1 &&
             (uint64_t)most * x->size > (x->kind == EXPR_LANG ? ROUNDS_MAX : UNROLL_MAX))
        add_counted_call(m, x, e->min, e->max, from, to);
    else
        add_copies(m, e, from, to);
}

void nfa_add_sequence(struct maker *m, struct expr *const *x, uint32_t n, uint32_t from,
                      uint32_t to) {
    for (uint32_t i = 0; i < n && !m->b->failed; i++) {
        uint32_t next = i + 1 < n ? nfa_state(m) : to;

        nfa_add(m, x[i], from, next);
        from = next;
    }
}

/* Returns the number of states that @e takes when all its calls are copied. NOT_FLAT: they cannot
 * be copied, because of recursion or because the states would be too many. */
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
            rule->flat_size = NOT_FLAT; /* the answer if the body turns out to call this rule */
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
    if (size > INLINE_MAX)
        return NOT_FLAT;
    return (uint32_t)size;
}

/* Adds a call, or the called rule's body in its place where that is small and not recursive. */
static void add_rule_call(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    if (m->flat || flat_size(m, e, 0) != NOT_FLAT) {
        nfa_add(m, m->b->rule[e->id].body, from, to);
        return;
    }
    if (m->b->rule[e->id].nullable)
        nfa_add_empty(m, from, to);
    nfa_add_call(m, (struct call_desc){.rule = e->id}, from, to);
}

/* Adds a copy of @l. Its start gets a state of its own besides @from: edges of @l may lead back to
 * its start, and other parts may begin at @from. */
static void add_lang(struct maker *m, const struct lang *l, uint32_t from, uint32_t to) {
    uint32_t base = m->n_nfa;

    for (uint32_t i = 0; i < l->n && !m->b->failed; i++)
        nfa_state(m);
    if (l->n)
        nfa_add_empty(m, from, base);
    for (uint32_t i = 0; i < l->n && !m->b->failed; i++) {
        const struct lang_state *s = &l->state[i];

        if (s->accepts & 1)
            nfa_add_empty(m, base + i, to);
        for (uint32_t e = s->edge; e < s->edge + s->n_edges; e++)
            nfa_add_bytes(m, base + i, l->edge[e].lo, l->edge[e].hi, base + l->edge[e].to);
    }
}

/* Adds a rule that counts characters where calls are not possible: one copy of its states for each
 * count. State i behind n characters is number n * l->n + i. */
static void add_within_flat(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    const struct rule *rule = &m->b->rule[e->id];
    assert(rule->need && rule->body->kind == EXPR_LANG && rule->need[0] <= e->max);
    const struct lang *l = rule->body->lang;
    uint32_t base = m->n_nfa;

    for (uint64_t i = 0; i < (uint64_t)l->n * (e->max + 1ull) && !m->b->failed; i++)
        nfa_state(m);
    nfa_add_empty(m, from, base);
    for (uint32_t n = 0; n <= e->max && !m->b->failed; n++) {
        for (uint32_t i = 0; i < l->n; i++) {
            const struct lang_state *s = &l->state[i];

            if (s->accepts & 1)
                nfa_add_empty(m, base + n * l->n + i, to);
            for (uint32_t k = s->edge; k < s->edge + s->n_edges; k++) {
                const struct edge *x = &l->edge[k];
                uint32_t behind = n + ((l->state[x->to].accepts & LANG_BORDER) != 0);

                if (behind + rule->need[x->to] <= e->max)
                    nfa_add_bytes(m, base + n * l->n + i, x->lo, x->hi,
                                  base + behind * l->n + x->to);
            }
        }
    }
}

static void add_within(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    if (m->flat) {
        add_within_flat(m, e, from, to);
        return;
    }
    if (expr_nullable(m->b, e))
        nfa_add_empty(m, from, to);
    nfa_add_call(m, (struct call_desc){.kind = CALL_WITHIN, .rule = e->id, .max = e->max}, from,
                 to);
}

static void add_once(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    struct call_desc d = {.kind = e->kind == EXPR_ONCE ? CALL_ONCE : CALL_MEMBERS,
                          .rule = e->id,
                          .min = e->min,
                          .max = e->max};

    nfa_add_call(m, d, from, to);
}

void nfa_add(struct maker *m, const struct expr *e, uint32_t from, uint32_t to) {
    if (m->b->failed)
        return;
    switch ((enum expr_kind)e->kind) {
    case EXPR_EMPTY:
        nfa_add_empty(m, from, to);
        break;
    case EXPR_NEVER:
        break;
    case EXPR_BYTES:
        nfa_add_literal(m, e->bytes, e->n, from, to);
        break;
    case EXPR_CHARS:
        nfa_add_chars(m, e, from, to);
        break;
    case EXPR_SEQ:
        nfa_add_sequence(m, e->child, e->n, from, to);
        break;
    case EXPR_ALT:
        for (uint32_t i = 0; i < e->n; i++)
            nfa_add_alternative(m, e->child[i], from, to);
        break;
    case EXPR_REPEAT:
        add_repeat(m, e, from, to);
        break;
    case EXPR_CALL:
        add_rule_call(m, e, from, to);
        break;
    case EXPR_TOKEN:
        nfa_add_token(m, e->id, from, to);
        break;
    case EXPR_LIST:
        nfa_add_list(m, e->list, from, to);
        break;
    case EXPR_NAMES:
        nfa_add_names(m, e->names, from, to);
        break;
    case EXPR_ONCE:
    case EXPR_MEMBERS:
        add_once(m, e, from, to);
        break;
    case EXPR_LANG:
        add_lang(m, e->lang, from, to);
        break;
    case EXPR_WITHIN:
        add_within(m, e, from, to);
        break;
    case EXPR_ANCHOR:
        assert(false);
    }
}
