/*
 * analyse - makes an automaton fit to run, and finds facts about it that the masks use.
 *
 * automaton_analyse() does four things, in this order:
 *
 * 1. Dead states are cut off (automaton_find_alive(), cut_dead()). A state is alive if some text
 *    leads from it to the end of its rule. Example: in root = "a" | list, list = "[" list "]" no
 *    text of list ever ends. So its states are dead, and since the call of list is cut off, a mask
 *    never allows `[`. That is the promise of the whole module: a text that was allowed so far can
 *    always be completed. The search goes backwards from the accepting states with a work list. An
 *    edge into a live state makes its source alive. A call does so if the state behind it is alive
 *    and the called rule can end, which it can when its start is alive; hence a rule whose start
 *    comes to life wakes the states that call it. The end of an object with members in any order is
 *    alive only once each required member can be written (members_live()).
 * 2. Rules that call nothing are marked as plain: their sets of configurations are single states,
 *    which walk_tables.c profits from.
 * 3. Left recursion is refused (order_rules()). The machine enters the calls of a state before it
 *    reads the next byte, so a rule that reaches itself through calls at starts alone, as in
 *    a = b "x", b = a | "y", would be entered for ever. A depth-first search over these calls finds
 *    such a cycle. Its postorder has callees before their callers.
 * 4. First and follow bytes of each rule (automaton_find_bytes()), as LL(1) parsers have them: the
 *    bytes that can begin its text, and those that can come right behind it anywhere in this
 *    grammar. First bytes take one pass in postorder. Follow bytes start with what comes behind
 *    each call; where a call may be the last of its rule, what follows the caller follows the
 *    callee, too, which is spread in passes until nothing changes. A token class (classify.c)
 *    examines only tokens that leave the rule with a follow byte: behind a JSON string few bytes
 *    can come.
 */

#include <assert.h>
#include <string.h>

#include "base/text.h"
#include "base/try.h"
#include "grammar/automaton/members.h"
#include "grammar/automaton/nfa.h"

#define FOLLOW_PASSES 16

/* The automaton with its arrows turned round: it says which states to look at again when a state
 * turns out to be alive. */
struct reverse {
    /* sources of each state, by edges and by targets of calls */
    uint32_t *begin, *source;
    /* states that call each rule, and by which call: call_of */
    uint32_t *call_begin, *caller;
    uint32_t *call_of;
    /* live states whose sources are still to be looked at */
    uint32_t *work, n_work;
    bool *alive;
};

static void reverse_free(struct reverse *r) {
    free(r->begin);
    free(r->source);
    free(r->call_begin);
    free(r->caller);
    free(r->call_of);
    free(r->work);
    free(r->alive);
}

static int reverse_init(struct reverse *r, struct build *b, const struct grammar *g) {
    size_t n = g->n_states;

    *r = (struct reverse){
        .begin = calloc(n + 2, sizeof(uint32_t)),
        .source = malloc((g->n_edges + g->n_calls + 1) * sizeof(uint32_t)),
        .call_begin = calloc(g->n_rules + 2, sizeof(uint32_t)),
        .caller = malloc((g->n_calls + 1) * sizeof(uint32_t)),
        .call_of = malloc((g->n_calls + 1) * sizeof(uint32_t)),
        .work = malloc((n + 1) * sizeof(uint32_t)),
        .alive = calloc(n + 1, sizeof(bool)),
    };
    if (!r->begin || !r->source || !r->call_begin || !r->caller || !r->call_of || !r->work ||
        !r->alive)
        return build_no_memory(b);
    for (uint32_t i = 0; i < g->n_edges; i++)
        r->begin[g->edge[i].to + 2]++;
    for (uint32_t i = 0; i < g->n_calls; i++) {
        r->begin[g->call[i].to + 2]++;
        r->call_begin[g->desc[g->call[i].desc].rule + 2]++;
    }
    for (size_t i = 2; i < n + 2; i++)
        r->begin[i] += r->begin[i - 1];
    for (uint32_t i = 2; i < g->n_rules + 2; i++)
        r->call_begin[i] += r->call_begin[i - 1];
    for (uint32_t q = 0; q < n; q++) {
        const struct state *s = &g->state[q];

        for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++)
            r->source[r->begin[g->edge[i].to + 1]++] = q;
        for (uint32_t i = s->call; i < s->call + s->n_calls; i++) {
            uint32_t at = r->call_begin[g->desc[g->call[i].desc].rule + 1]++;

            r->source[r->begin[g->call[i].to + 1]++] = q;
            r->caller[at] = q;
            r->call_of[at] = i;
        }
    }
    return build_work(b, g->n_states + g->n_edges + g->n_calls);
}

static void revive(struct reverse *r, uint32_t q) {
    if (!r->alive[q]) {
        r->alive[q] = true;
        r->work[r->n_work++] = q;
    }
}

/* Returns whether an edge of @q, or a call of a rule that can end, leads to a live state. */
static bool leads_on(const struct grammar *g, const struct reverse *r, uint32_t q) {
    const struct state *s = &g->state[q];

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
        if (r->alive[g->edge[i].to])
            return true;
    }
    for (uint32_t i = s->call; i < s->call + s->n_calls; i++) {
        if (r->alive[g->call[i].to] && r->alive[g->rule[g->desc[g->call[i].desc].rule].start])
            return true;
    }
    return false;
}

/* Records that @member of the object @rule can be written. When it was the last of the required
 * ones, the object can end: its accepting states come alive. */
static void member_lives(struct grammar *g, struct reverse *r, uint32_t rule, uint32_t member) {
    const struct auto_rule *o = &g->rule[rule];

    if (!members_live(g, rule, member))
        return;
    for (uint32_t q = o->start; q < o->start + o->n_states; q++) {
        if (g->state[q].flags & STATE_ACCEPT)
            revive(r, q);
    }
}

static void automaton_find_alive(struct grammar *g, struct reverse *r) {
    for (uint32_t i = 0; i < g->n_rules; i++) {
        if (g->state[g->rule[i].start].flags & STATE_MEMBERS)
            member_lives(g, r, i, NO_MAX);
    }
    for (uint32_t q = 0; q < g->n_states; q++) {
        if ((g->state[q].flags & (STATE_ACCEPT | STATE_MEMBERS)) == STATE_ACCEPT)
            revive(r, q);
    }
    while (r->n_work) {
        uint32_t q = r->work[--r->n_work], rule = g->state[q].rule;

        assert(r->alive[q] && rule < g->n_rules);

        for (uint32_t i = r->begin[q]; i < r->begin[q + 1]; i++) {
            if (!r->alive[r->source[i]] && leads_on(g, r, r->source[i]))
                revive(r, r->source[i]);
        }
        if (g->rule[rule].start != q)
            continue;
        for (uint32_t i = r->call_begin[rule]; i < r->call_begin[rule + 1]; i++) {
            const struct call_desc *d = &g->desc[g->call[r->call_of[i]].desc];

            if (is_member(d))
                member_lives(g, r, g->state[r->caller[i]].rule, d->min);
            if (r->alive[g->call[r->call_of[i]].to])
                revive(r, r->caller[i]);
        }
    }
}

static void cut_dead(struct grammar *g, const struct reverse *r) {
    for (uint32_t q = 0; q < g->n_states; q++) {
        struct state *s = &g->state[q];
        uint16_t n_edges = 0, n_calls = 0;

        s->flags &= (uint8_t)~STATE_TOKENS;
        for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
            if (!r->alive[g->edge[i].to])
                continue;
            if (g->edge[i].lo >= TOKEN_SYMBOL)
                s->flags |= STATE_TOKENS;
            g->edge[s->edge + n_edges++] = g->edge[i];
        }
        for (uint32_t i = s->call; i < s->call + s->n_calls; i++) {
            if (r->alive[g->call[i].to] && r->alive[g->rule[g->desc[g->call[i].desc].rule].start])
                g->call[s->call + n_calls++] = g->call[i];
        }
        s->n_edges = n_edges;
        s->n_calls = n_calls;
        if ((s->flags & STATE_ACCEPT) && !n_edges && !n_calls)
            s->flags |= STATE_RETURN;
    }
}

/* Orders the rules so that each comes after the rules that it calls at its start. Returns -EINVAL
 * when a rule calls itself there. */
static int order_rules(struct build *b, const struct grammar *g, uint32_t *order) {
    enum { NEW, OPEN, DONE };
    CLEANUP(freep) uint8_t *mark = calloc(g->n_rules, 1);
    CLEANUP(freep) uint32_t *path = malloc(g->n_rules * sizeof(*path));
    CLEANUP(freep) uint32_t *at = calloc(g->n_rules, sizeof(*at));
    uint32_t n = 0;

    if (!mark || !path || !at)
        return build_no_memory(b);
    for (uint32_t root = 0; root < g->n_rules; root++) {
        uint32_t depth = 0;

        if (mark[root] != NEW)
            continue;
        path[depth++] = root;
        mark[root] = OPEN;
        while (depth) {
            uint32_t r = path[depth - 1];
            const struct state *s = &g->state[g->rule[r].start];

            if (at[r] == s->n_calls) {
                mark[r] = DONE;
                order[n++] = r;
                depth--;
                continue;
            }
            assert(depth <= g->n_rules && at[r] < s->n_calls);
            uint32_t callee = g->desc[g->call[s->call + at[r]++].desc].rule;

            if (mark[callee] == OPEN) {
                const char *name = b->rule[callee].name;

                return build_invalid(
                    b, "%s%srefers to itself without reading anything (left recursion)",
                    text_or(name, "a rule"), name ? ": it " : " ");
            }
            assert(callee < g->n_rules);
            if (mark[callee] == NEW) {
                mark[callee] = OPEN;
                path[depth++] = callee;
            }
        }
    }
    assert(n == g->n_rules);
    return build_work(b, g->n_calls);
}

static void unite(struct byte_set *to, const struct byte_set *from) {
    for (int i = 0; i < 4; i++)
        to->w[i] |= from->w[i];
}

static struct byte_set automaton_first(const struct grammar *g, uint32_t q) {
    const struct state *s = &g->state[q];
    struct byte_set f = {{0}};

    for (uint32_t i = s->edge; i < s->edge + s->n_edges && g->edge[i].lo < TOKEN_SYMBOL; i++)
        byte_set_add_range(&f, g->edge[i].lo, g->edge[i].hi);
    for (uint32_t i = s->call; i < s->call + s->n_calls; i++)
        unite(&f, &g->rule[g->desc[g->call[i].desc].rule].first);
    return f;
}

/* Calls behind which the calling rule may end, so that what follows this rule follows the callee,
 * too. */
struct last_calls {
    struct last_call {
        uint32_t callee, rule;
    } * v;
    uint32_t n;
};

/* Finds the bytes that can follow each call in the rule that makes it. */
static void find_follow(struct grammar *g, struct last_calls *last) {
    for (uint32_t q = 0; q < g->n_states; q++) {
        const struct state *s = &g->state[q];

        for (uint32_t i = s->call; i < s->call + s->n_calls; i++) {
            const struct call_desc *d = &g->desc[g->call[i].desc];
            struct auto_rule *r = &g->rule[d->rule];
            struct byte_set f = automaton_first(g, g->call[i].to);

            if (d->kind == CALL_REPEAT)
                unite(&f, &r->first);
            unite(&r->follow, &f);
            if (g->state[g->call[i].to].flags & STATE_ACCEPT)
                last->v[last->n++] = (struct last_call){d->rule, s->rule};
        }
    }
}

/* Adds the follow bytes of callers to those of rules called last. Returns whether any was new. */
static bool spread_follow(struct grammar *g, const struct last_calls *last) {
    bool changed = false;

    for (uint32_t i = 0; i < last->n; i++) {
        struct byte_set *follow = &g->rule[last->v[i].callee].follow, old = *follow;

        unite(follow, &g->rule[last->v[i].rule].follow);
        changed = changed || memcmp(&old, follow, sizeof(old)) != 0;
    }
    return changed;
}

static int automaton_find_bytes(struct build *b, struct grammar *g, const uint32_t *order) {
    CLEANUP(freep) struct last_call *calls = malloc((g->n_calls + 1ull) * sizeof(*calls));
    struct last_calls last = {.v = calls};
    bool changed = true;

    if (!calls)
        return build_no_memory(b);
    TRY(build_work(b, g->n_states / 4 + g->n_calls * 4ull));
    for (uint32_t i = 0; i < g->n_rules; i++)
        g->rule[order[i]].first = automaton_first(g, g->rule[order[i]].start);
    find_follow(g, &last);
    assert(last.n <= g->n_calls);
    for (int pass = 0; changed && pass < FOLLOW_PASSES; pass++) {
        changed = spread_follow(g, &last);
        TRY(build_work(b, last.n * 2ull));
    }
    /* If the passes did not suffice, any byte may follow: a superset is always right, it only makes
     * token classes larger. */
    for (uint32_t i = 0; changed && i < g->n_rules; i++)
        memset(&g->rule[i].follow, 0xff, sizeof(g->rule[i].follow));
    return 0;
}

static void find_plain(struct grammar *g) {
    for (uint32_t i = 0; i < g->n_rules; i++)
        g->rule[i].plain = true;
    for (uint32_t q = 0; q < g->n_states; q++) {
        const struct state *s = &g->state[q];

        if (s->n_calls || (s->flags & STATE_MEMBERS))
            g->rule[s->rule].plain = false;
    }
}

static int analyse_with(struct build *b, struct grammar *g, struct reverse *rev) {
    CLEANUP(freep) uint32_t *order = malloc(g->n_rules * sizeof(*order));

    if (!order)
        return build_no_memory(b);
    automaton_find_alive(g, rev);
    if (!rev->alive[g->rule[g->start].start] && !g->nullable)
        return build_invalid(b, "no text satisfies this grammar");
    cut_dead(g, rev);
    find_plain(g);
    TRY(order_rules(b, g, order));
    return automaton_find_bytes(b, g, order);
}

int automaton_analyse(struct build *b, struct grammar *g) {
    CLEANUP(reverse_free) struct reverse rev = {0};

    TRY(reverse_init(&rev, b, g));
    return analyse_with(b, g, &rev);
}
