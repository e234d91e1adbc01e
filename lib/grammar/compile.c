/*
 * compile - turns expressions into a compiled grammar: the order of the passes, and its memory.
 *
 * The front ends write rules whose bodies are regular expressions over bytes that may call other
 * rules (expr.h). A machine that follows texts needs deterministic automata. Example:
 *
 *     list = "[" ( item ( "," item )* )? "]"        rule `list`, made deterministic:
 *     item = digits | list
 *                                                   0 --[--> 1 --item--> 2 --,--> 3 --item--> 2
 *                                                            1 --]--> end         2 --]--> end
 *
 * A call is an edge like any other for the construction. At run time it pushes a frame (machine.c).
 * Since each rule is determinized on its own, its states are few and do not depend on its callers,
 * which is why equal rules of different grammars can share their token classes (share.c). The price
 * is ambiguity between rules: a number that may end and a rule that goes on behind it are two
 * configurations until the next byte decides.
 *
 * The passes of automaton_new(), each of which needs the one before:
 *
 *   find_nullable()         which rules match the empty text. Their callers step around such a
 *                           call, so that a called rule always reads something
 *   make_rules()            NFA (nfa.c) and DFA (dfa.c) of each rule; a repetition that is too
 *                           large to copy becomes a counted call of a rule that is added here
 *   members_copy(), ...     copies of tables that live in the build's arena
 *   automaton_analyse()     cuts off states from which no end can be reached, so that a text never
 *                           gets stuck; refuses left recursion; first and follow bytes of rules
 *   distinct_new()          lower bounds of the number of texts, for items that must differ
 *   make_tables()           states with many edges get a table of 256 targets
 *   finish_new()            the shortest path from each state to the end of its rule
 *   automaton_free_chars()  texts that a state reads whichever characters they have
 *   automaton_classify()    room for token classes, which masks make when they need them. Only a
 *                           grammar that is not a schema gets all of them now, so that its author
 *                           learns at once if it is too ambiguous
 *
 * The number of states can be exponential in the size of a rule, and a source may be hostile. So
 * every pass counts its steps (build_work()) and its states, and the source is refused when there
 * are too many. The expressions live in the build's arena and are freed with it; the grammar owns
 * what it keeps.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "grammar/automaton/members.h"
#include "grammar/automaton/nfa.h"
#include "grammar/machine/distinct.h"
#include "grammar/mask/class.h"
#include "grammar/match/finish.h"

#define DENSE_EDGES 6 /* states with more get a table, as long as there are not too many */
#define DENSE_MAX 256
#define MAX_STACK 768

/* Finds the rules that match the empty text. A rule does so when its body does, which may depend on
 * other rules, so it goes through all rules until nothing changes. */
static int find_nullable(struct build *b) {
    bool changed = true;
    int r = 0;

    while (changed && r == 0) {
        changed = false;
        for (uint32_t i = 0; i < b->n_rules; i++) {
            if (b->rule[i].nullable || !b->rule[i].body || !expr_nullable(b, b->rule[i].body))
                continue;
            b->rule[i].nullable = changed = true;
        }
        r = build_work(b, b->n_rules);
    }
    return r;
}

static int make_rules(struct maker *m) {
    struct build *b = m->b;

    /* Making a rule may add further rules: n_rules grows meanwhile. */
    for (uint32_t i = 0; i < b->n_rules; i++) {
        TRY(maker_grow(m, &m->g->rule, i, &m->cap_rules, sizeof(*m->g->rule)));
        m->g->n_rules = i + 1;
        TRY(dfa_make(m, i));
    }
    return 0;
}

/* Copies the fewest characters to the end of the rule for each state of rules that count
 * characters. */
static int copy_needs(struct build *b, struct grammar *g) {
    for (uint32_t i = 0; i < g->n_rules; i++) {
        const struct rule *from = &b->rule[i];
        uint32_t start = g->rule[i].start;

        if (!from->need)
            continue;
        if (!g->need) {
            g->need = calloc(g->n_states, sizeof(*g->need));
            g->bytes += g->n_states * sizeof(*g->need);
        }
        if (!g->need)
            return build_no_memory(b);
        g->need[start] = from->need[0];
        memcpy(g->need + start + 1, from->need, from->body->lang->n * sizeof(*g->need));
    }
    return 0;
}

static int make_tables(struct build *b, struct grammar *g) {
    uint32_t n = 0;

    for (uint32_t q = 0; q < g->n_states && n < DENSE_MAX; q++)
        n += g->state[q].n_edges > DENSE_EDGES;
    g->table = malloc(MAX(n, 1u) * sizeof(*g->table));
    if (!g->table)
        return build_no_memory(b);
    for (uint32_t q = 0; q < g->n_states && g->n_tables < n; q++) {
        struct state *s = &g->state[q];

        if (s->n_edges <= DENSE_EDGES)
            continue;
        uint32_t *t = g->table[g->n_tables];

        memset(t, 0xff, sizeof(*g->table));
        for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
            for (unsigned c = g->edge[i].lo; c <= g->edge[i].hi && c < TOKEN_SYMBOL; c++)
                t[c] = g->edge[i].to;
        }
        s->dense = (int32_t)g->n_tables++;
    }
    assert(g->n_tables <= n && n <= DENSE_MAX + 1);
    return build_work(b, n * 64);
}

/* Copies the tries of names, which live in the build's arena, into the grammar. */
static int copy_names(struct build *b, struct grammar *g) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->n_descs; i++)
        n += g->desc[i].kind == CALL_NAMES;
    g->names = calloc(MAX(n, 1u), sizeof(*g->names));
    if (!g->names)
        return build_no_memory(b);
    for (uint32_t i = 0; i < g->n_descs; i++) {
        const struct names *from = g->desc[i].names;
        struct names *to = &g->names[g->n_names];

        if (g->desc[i].kind != CALL_NAMES)
            continue;
        to->node = malloc(from->n * sizeof(*to->node));
        if (!to->node)
            return build_no_memory(b);
        memcpy(to->node, from->node, from->n * sizeof(*to->node));
        to->n = from->n;
        g->bytes += from->n * sizeof(*to->node);
        g->desc[i].names = to;
        g->n_names++;
    }
    assert(g->n_names == n);
    return 0;
}

static void trim_arrays(struct grammar *g) {
    array_resize(&g->state, MAX(g->n_states, 1u), sizeof(*g->state));
    array_resize(&g->edge, MAX(g->n_edges, 1u), sizeof(*g->edge));
    array_resize(&g->call, MAX(g->n_calls, 1u), sizeof(*g->call));
    array_resize(&g->desc, MAX(g->n_descs, 1u), sizeof(*g->desc));
    array_resize(&g->rule, MAX(g->n_rules, 1u), sizeof(*g->rule));
    g->bytes += sizeof(*g) + g->n_states * sizeof(*g->state) + g->n_edges * sizeof(*g->edge) +
                g->n_calls * sizeof(*g->call) + g->n_descs * sizeof(*g->desc) +
                g->n_rules * sizeof(*g->rule) + g->n_tables * sizeof(*g->table);
}

int automaton_new(struct grammar **out, struct build *b, uint32_t root) {
    CLEANUP(grammar_freep) struct grammar *g = calloc(1, sizeof(*g));
    struct maker m = {.b = b, .g = g};

    if (!g)
        return -ENOMEM;
    g->vocab = b->vocab;
    g->start = root;
    g->max_stack = MAX_STACK;
    if (find_nullable(b) == 0) {
        g->nullable = b->rule[root].nullable;
        make_rules(&m);
    }
    maker_free(&m);
    TRY(b->failed);
    TRY(copy_needs(b, g));
    TRY(members_copy(b, g));
    TRY(automaton_analyse(b, g));
    TRY(copy_names(b, g));
    TRY(members_spans(b, g));
    TRY(distinct_new(b, g));
    TRY(make_tables(b, g));
    if (b->vocab) {
        TRY(finish_new(b, g));
        TRY(automaton_free_chars(b, g));
    }
    trim_arrays(g);
    if (g->bytes > b->limits.max_bytes)
        return build_too_complex(b, "the compiled grammar takes more than %zu bytes",
                                 b->limits.max_bytes);
    if (b->vocab)
        TRY(automaton_classify(b, g));
    *out = STEAL(g);
    return 0;
}

struct grammar *grammar_free(struct grammar *g) {
    if (!g)
        return NULL;
    classes_free(g);
    finish_free(g->finish);
    for (uint32_t i = 0; i < g->n_names; i++)
        free(g->names[i].node);
    free(g->names);
    members_free(g);
    free(g->n_texts);
    free(g->doubles);
    free(g->state);
    free(g->edge);
    free(g->call);
    free(g->desc);
    free(g->rule);
    free(g->table);
    free(g->free_chars);
    free(g->need);
    free(g->token);
    free(g);
    return NULL;
}

size_t grammar_bytes(const struct grammar *g) {
    return g->bytes;
}
