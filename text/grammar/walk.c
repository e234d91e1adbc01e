/*
 * walk - two ways through a trie, which give the same.
 *
 * walk_steps() moves the machine along every node. That needs nothing before it: right for the few
 * hundred nodes behind a quote or a bracket. Most of these are in the middle of a rule (a literal,
 * blanks), where the stack has no say: their states are followed without sets, and so are those of
 * a loop (blanks, characters of a key) with its register, as long as what comes behind it begins
 * with other bytes. What is reached from a set is what is reached from each of its configurations,
 * so they are walked from one by one where their bytes differ, and at the root always: deeper the
 * same readings could be walked from again and again.
 *
 * A state in the middle of a text reaches most of the vocabulary, a quarter of a million nodes by
 * way of a few sets of configurations. walk_tables() makes the automaton deterministic as it goes:
 * sets are numbered, and what a byte makes of a set is looked up in a table once it has been found
 * out. A walk then costs some 2 ns a node, and fuel only for what is new.
 *
 * Both take a subtree whole where a state is known to read all texts of its kind (kinds.c). The
 * second also finds out which bytes never lead far from a set that it is often in, and takes what
 * is made of these: a state that lacks a letter reads nothing of a kind as a whole.
 *
 * walk_like() knows what is reached from another set and looks only where the two differ. States of
 * one pattern often differ in a few bytes, behind which most texts lead to the same state again.
 */

#include "text/grammar/kinds.h"
#include "text/grammar/walk.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define SETS_MAX 4608
#define STAYS_CONFIGS 16  /* in it: a step costs by their number */
#define STAYS_SETS 12     /* that texts of a set's bytes may lead to */
#define STAYS_REACHED 500 /* nodes at which a set was before it is found out */
#define STAYS_MAX 512     /* sets made for it: SETS_MAX without them is 4096 */
#define SETS_FIRST 64
#define APART_CONFIGS 6 /* of a set: more are not walked from one by one */
#define MANY_READINGS                                                                              \
    4 /* of a loop: walked from apart though what is behind it reads the same bytes */
#define MANY_CHILDREN 16 /* of a node: the set's bytes are found first */

/* Whether a configuration of @s reads whatever is below @n. */
static bool reads_all(const struct walk *w, const struct set *s, const struct trie_node *n) {
    const struct machine *m = w->m;

    if (!(w->kinds >> n->kind & 1) || n->height > RUNWAY_MAX)
        return false;
    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];
        const struct state *q = &m->g->state[c->state];

        if (m->g->runway[c->state][n->kind] < n->height)
            continue;
        if (!(q->flags & STATE_LOOP) || c->frame == 0)
            return true;
        const struct call_desc *d = &m->g->desc[m->g->call[m->frame[c->frame].call].desc];

        if (d->kind != CALL_COUNTED || d->max == NO_MAX || d->max - c->reg >= n->height)
            return true;
    }
    return false;
}

static inline void set_items(struct walk *w, uint32_t first, uint32_t last) {
    for (uint32_t i = first; w->bits && i < last; i++) {
        uint32_t *word = &w->bits[w->trie->item[i] / 32], bit = 1u << (w->trie->item[i] % 32);

        w->n_set += !(*word & bit);
        *word |= bit;
    }
}

static void clear_items(struct walk *w, uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; i++)
        w->bits[w->trie->item[i] / 32] &= ~(1u << (w->trie->item[i] % 32));
}

static void take(struct walk *w, uint32_t first, uint32_t last, const struct set *s,
                 uint32_t depth) {
    if (w->take) {
        w->take(w, first, last, s, depth);
        return;
    }
    set_items(w, first, last);
}

/* At a node that is reached; whether to go on below it. */
static inline bool reach(struct walk *w, uint32_t node, const struct set *s, uint32_t depth) {
    const struct trie_node *n = &w->trie->node[node];

    w->n_visited++;
    if (!w->clears)
        set_items(w, n->items, n->items + n->n_items);
    if (w->visit && (s->can_end || !w->only_ends) && !w->visit(w, node, s, depth))
        return false;
    return s->end > s->begin && n->n_children;
}

static bool has_stopped(const struct walk *w) {
    return w->m->error || (w->max_visited && w->n_visited > w->max_visited);
}

static void steps_below(struct walk *w, uint32_t node, uint32_t last, const struct set *from,
                        uint32_t depth);

/* Child @i of @n, which is alive with the set @next. @last: the end of the items below @n. */
static inline void step_into(struct walk *w, const struct trie_node *n, uint32_t i, uint32_t last,
                             const struct set *next, uint32_t depth) {
    const struct trie_node *child = &w->trie->node[n->child + i];
    uint32_t end = i + 1 < n->n_children ? child[1].items : last;

    if (!reach(w, n->child + i, next, depth + 1))
        return;
    if (reads_all(w, next, child))
        take(w, child->items + child->n_items, end, next, depth + 1);
    else
        steps_below(w, n->child + i, end, next, depth + 1);
}

/* The first child of @n from @i on whose byte is at least @byte. */
static uint32_t child_from(const struct trie *t, const struct trie_node *n, uint32_t i,
                           unsigned byte) {
    uint32_t hi = n->n_children;

    while (i + 8 < hi) {
        uint32_t mid = i + (hi - i) / 2;

        if (t->node[n->child + mid].byte < byte)
            i = mid + 1;
        else
            hi = mid;
    }
    while (i < hi && t->node[n->child + i].byte < byte)
        i++;
    return i;
}

/* The bytes that edges of @s have. */
static struct byte_set bytes_of(const struct machine *m, const struct set *s) {
    struct byte_set set = {{0}};
    uint32_t before = NO_STATE;

    for (uint32_t i = s->begin; i < s->end; before = m->config[i++].state) {
        const struct state *q = &m->g->state[m->config[i].state];

        if (m->config[i].state == before)
            continue;
        for (uint32_t e = q->edge; e < q->edge + q->n_edges; e++)
            byte_set_add_range(&set, m->g->edge[e].lo, m->g->edge[e].hi);
    }
    return set;
}

/* Whether @state reads whatever is below @n without leaving its rule. */
static bool is_within(const struct walk *w, const struct trie_node *n, uint32_t state) {
    return (w->kinds >> n->kind & 1) && n->height <= RUNWAY_MAX &&
           w->m->g->runway[state][n->kind] >= n->height;
}

/* Whether @s is in the middle of a rule: what its edges lead to depends on it alone. */
static bool is_plain(const struct state *s) {
    return s->n_edges && !(s->flags & (STATE_ACCEPT | STATE_LOOP | STATE_MEMBERS));
}

/* How the rules that @s calls begin like texts below @n: not at all, with bytes that no edge of @s
 * has, or with one that has an edge, too. */
enum calls { CALLS_NONE, CALLS_APART, CALLS_BESIDE };

static enum calls calls_at(const struct walk *w, const struct state *s, const struct trie_node *n) {
    const struct grammar *g = w->m->g;
    const struct trie_node *child = &w->trie->node[n->child];
    enum calls calls = CALLS_NONE;

    for (uint32_t c = s->call; c < s->call + s->n_calls; c++) {
        const struct byte_set *first = &g->rule[g->desc[g->call[c].desc].rule].first;

        for (uint32_t i = 0; i < n->n_children; i++) {
            if (!byte_set_has(first, child[i].byte))
                continue;
            if (state_next(g, s, child[i].byte) != NO_STATE)
                return CALLS_BESIDE;
            calls = CALLS_APART;
        }
    }
    return calls;
}

static void plain_below(struct walk *w, const struct trie_node *n, uint32_t last, uint32_t state,
                        const struct set *stacks, uint32_t depth);

/* Child @i of @n, behind an edge that leads to @to. */
static void plain_into(struct walk *w, const struct trie_node *n, uint32_t i, uint32_t last,
                       uint32_t to, const struct set *stacks, uint32_t depth) {
    const struct trie_node *child = &w->trie->node[n->child + i];
    uint32_t end = i + 1 < n->n_children ? child[1].items : last;
    const struct state *s = &w->m->g->state[to];
    struct machine *m = w->m;
    struct set next;
    enum calls calls = is_plain(s) ? calls_at(w, s, child) : CALLS_BESIDE;

    if (calls == CALLS_BESIDE) {
        if (machine_follow(m, stacks, child->byte, to, &next))
            step_into(w, n, i, last, &next, depth);
        m->n_configs = next.begin;
        return;
    }
    if (!machine_spend(m))
        return;
    w->n_visited++;
    set_items(w, child->items, child->items + child->n_items);
    if (w->blind && !w->visit(w, n->child + i, NULL, depth + 1))
        return;
    if (is_within(w, child, to)) {
        set_items(w, child->items + child->n_items, end);
        return;
    }
    if (child->n_children)
        plain_below(w, child, end, to, stacks, depth + 1);
    if (calls == CALLS_APART && !has_stopped(w)) {
        machine_call(m, stacks, to, &next);
        if (next.end > next.begin)
            steps_below(w, n->child + i, end, &next, depth + 1);
        m->n_configs = next.begin;
    }
}

/* Below @n, at which @state and states that are plain have been reached with the stacks of all of
 * @stacks, whose own states are other ones meanwhile. Edges and children are both sorted. */
static void plain_below(struct walk *w, const struct trie_node *n, uint32_t last, uint32_t state,
                        const struct set *stacks, uint32_t depth) {
    const struct state *s = &w->m->g->state[state];
    const struct edge *e = w->m->g->edge + s->edge, *end = e + s->n_edges;
    const struct trie_node *child = &w->trie->node[n->child];

    if (n->n_children <= s->n_edges) {
        for (uint32_t i = 0; i < n->n_children && !has_stopped(w); i++) {
            uint32_t to = state_next(w->m->g, s, child[i].byte);

            if (to != NO_STATE)
                plain_into(w, n, i, last, to, stacks, depth);
        }
        return;
    }
    for (uint32_t i = 0; e < end && e->lo < TOKEN_SYMBOL; e++) {
        for (i = child_from(w->trie, n, i, e->lo); i < n->n_children && child[i].byte <= e->hi;
             i++) {
            if (has_stopped(w))
                return;
            plain_into(w, n, i, last, e->to, stacks, depth);
        }
    }
}

/* A loop, whose end leads to the same set wherever it is. */
struct loop {
    const struct call_desc *desc;
    struct set behind;
    struct byte_set bytes; /* with which that goes on: none of the loop's */
    /* Of readings that differ by what they count alone: what each has counted more than the one
     * that has counted least, whose register goes along. The first is that one. */
    uint32_t more[SET_MAX], n;
};

/* Whether one of the readings may end where the least register is @reg. */
static bool may_end(const struct loop *k, uint32_t reg) {
    for (uint32_t i = 0; i < k->n; i++) {
        if (k->more[i] <= k->desc->max - reg && loop_may_end(k->desc, reg + k->more[i]))
            return true;
    }
    return false;
}

static bool has_child_of(const struct walk *w, const struct trie_node *n,
                         const struct byte_set *bytes) {
    const struct trie_node *child = &w->trie->node[n->child];

    for (uint32_t i = 0; i < n->n_children; i++) {
        if (byte_set_has(bytes, child[i].byte))
            return true;
    }
    return false;
}

static void loop_below(struct walk *w, const struct trie_node *n, uint32_t last, uint32_t state,
                       uint32_t reg, const struct loop *k, uint32_t depth);

/* Child @i of @n, behind an edge of @from that leads to @to. */
static void loop_into(struct walk *w, const struct trie_node *n, uint32_t i, uint32_t last,
                      const struct state *from, uint32_t to, uint32_t reg, const struct loop *k,
                      uint32_t depth) {
    const struct trie_node *child = &w->trie->node[n->child + i];
    uint32_t end = i + 1 < n->n_children ? child[1].items : last;
    const struct call_desc *d = k->desc;

    if (!loop_step(d, from, child->byte, &reg) || !machine_spend(w->m))
        return;
    w->n_visited++;
    set_items(w, child->items, child->items + child->n_items);
    if ((w->blind && !w->visit(w, n->child + i, NULL, depth + 1)) || !child->n_children)
        return;
    if (is_within(w, child, to) &&
        (d->kind != CALL_COUNTED || d->max == NO_MAX || d->max - reg >= child->height)) {
        set_items(w, child->items + child->n_items, end);
        return;
    }
    loop_below(w, child, end, to, reg, k, depth + 1);
    if ((w->m->g->state[to].flags & STATE_ACCEPT) && has_child_of(w, child, &k->bytes) &&
        may_end(k, reg) && !has_stopped(w))
        steps_below(w, n->child + i, end, &k->behind, depth + 1);
}

/* Below @n from @state of the loop, whose register is @reg. */
static void loop_below(struct walk *w, const struct trie_node *n, uint32_t last, uint32_t state,
                       uint32_t reg, const struct loop *k, uint32_t depth) {
    const struct state *s = &w->m->g->state[state];
    const struct edge *e = w->m->g->edge + s->edge, *end = e + s->n_edges;
    const struct trie_node *child = &w->trie->node[n->child];

    if (n->n_children <= s->n_edges) {
        for (uint32_t i = 0; i < n->n_children && !has_stopped(w); i++) {
            uint32_t to = state_next(w->m->g, s, child[i].byte);

            if (to != NO_STATE)
                loop_into(w, n, i, last, s, to, reg, k, depth);
        }
        return;
    }
    for (uint32_t i = 0; e < end && e->lo < TOKEN_SYMBOL; e++) {
        for (i = child_from(w->trie, n, i, e->lo); i < n->n_children && child[i].byte <= e->hi;
             i++) {
            if (has_stopped(w))
                return;
            loop_into(w, n, i, last, s, e->to, reg, k, depth);
        }
    }
}

/* Whether @c and @d are readings of one loop that differ by what they count alone. */
static bool count_apart(const struct machine *m, const struct config *c, const struct config *d) {
    return c->state == d->state && c->frame == d->frame && c->frame &&
           (m->g->state[c->state].flags & STATE_LOOP) &&
           m->g->desc[m->g->call[m->frame[c->frame].call].desc].kind == CALL_COUNTED;
}

/* The registers of configuration @i of @from and of those that differ by what they count. The least
 * one. */
static uint32_t find_readings(const struct machine *m, const struct set *from, uint32_t i,
                              struct loop *k) {
    const struct config *c = &m->config[i];
    uint32_t least = c->reg;

    k->more[0] = c->reg;
    k->n = 1;
    for (uint32_t j = i + 1; j < from->end; j++) {
        if (!count_apart(m, c, &m->config[j]))
            continue;
        k->more[k->n++] = m->config[j].reg;
        least = MIN(least, m->config[j].reg);
    }
    for (uint32_t j = 0; j < k->n; j++)
        k->more[j] -= least;
    return least;
}

/* Walks from configuration @i of @from, of a loop, and those that differ by what they count, without
 * sets as long as they are in it. False: where the loop ends does not show at once, or is asked
 * for. */
static bool steps_of_loop(struct walk *w, const struct trie_node *n, uint32_t last,
                          const struct set *from, uint32_t i, uint32_t depth) {
    struct machine *m = w->m;
    const struct config c = m->config[i];
    const struct state *s = &m->g->state[c.state], *start;
    struct loop k;

    if (!(s->flags & STATE_LOOP) || s->n_calls || !c.frame)
        return false;
    k.desc = &m->g->desc[m->g->call[m->frame[c.frame].call].desc];
    k.behind = set_open(m);
    assert(k.desc->kind == CALL_COUNTED || k.desc->kind == CALL_NAMES);
    uint32_t least = find_readings(m, from, i, &k);

    machine_leave(m, &k.behind, 0, c.frame, 0);
    k.bytes = bytes_of(m, &k.behind);
    start = &m->g->state[m->g->rule[s->rule].start];
    bool apart = !w->visit || w->blind || !k.behind.can_end;

    for (uint32_t e = start->edge; apart && k.n < MANY_READINGS && e < start->edge + start->n_edges;
         e++) {
        for (unsigned b = m->g->edge[e].lo; apart && b <= MIN(m->g->edge[e].hi, 255u); b++)
            apart = !byte_set_has(&k.bytes, (uint8_t)b);
    }
    if (apart)
        loop_below(w, n, last, c.state, least, &k, depth);
    m->n_configs = k.behind.begin;
    return apart;
}

/* The same from one configuration. */
static void steps_of_one(struct walk *w, const struct trie_node *n, uint32_t last,
                         const struct set *from, uint32_t depth) {
    struct machine *m = w->m;
    const struct state *s = &m->g->state[m->config[from->begin].state];
    const struct edge *e = m->g->edge + s->edge, *end = e + s->n_edges;

    for (uint32_t i = 0; e < end && e->lo < TOKEN_SYMBOL; e++) {
        i = child_from(w->trie, n, i, e->lo);
        for (; i < n->n_children && w->trie->node[n->child + i].byte <= e->hi; i++) {
            struct set next;

            if (has_stopped(w))
                return;
            if (machine_follow(m, from, w->trie->node[n->child + i].byte, e->to, &next))
                step_into(w, n, i, last, &next, depth);
            m->n_configs = next.begin;
        }
    }
}

/* Whether the walk needs no sets where they can be done without. */
static bool needs_no_sets(const struct walk *w) {
    return !w->take && (!w->visit || w->only_ends || w->blind) && !w->m->g->variety;
}

static bool is_free(const struct machine *m, const struct config *c) {
    return !(m->g->state[c->state].flags & (STATE_LOOP | STATE_MEMBERS));
}

/* The configurations of @from with the state of @i, which differ by their stacks. */
static struct set stacks_of(struct machine *m, const struct set *from, uint32_t i) {
    uint32_t state = m->config[i].state;
    struct set stacks = set_open(m);

    for (uint32_t j = i; j < from->end && machine_reserve(m, 1) == 0; j++) {
        if (m->config[j].state == state)
            m->config[m->n_configs++] = m->config[j];
    }
    stacks.end = m->n_configs;
    return stacks;
}

/* Walks from the configurations of @from that can be walked from alone; the others are *@rest, the
 * machine's last set. */
static void steps_apart(struct walk *w, const struct trie_node *n, uint32_t last,
                        const struct set *from, struct set *rest, uint32_t depth) {
    struct machine *m = w->m;
    bool alone[SET_MAX];

    if (from->end - from->begin == 1 && is_free(m, &m->config[from->begin])) {
        plain_below(w, n, last, m->config[from->begin].state, from, depth);
        *rest = set_open(m);
        return;
    }
    for (uint32_t i = from->begin; i < from->end && !has_stopped(w); i++) {
        uint32_t j = from->begin;
        bool free = is_free(m, &m->config[i]);

        while (j < i && (free ? m->config[j].state != m->config[i].state
                              : !count_apart(m, &m->config[j], &m->config[i])))
            j++;
        if (j < i) { /* it has been walked from */
            alone[i - from->begin] = alone[j - from->begin];
            continue;
        }
        alone[i - from->begin] = free || steps_of_loop(w, n, last, from, i, depth);
        if (!free)
            continue;
        struct set stacks = stacks_of(m, from, i);

        plain_below(w, n, last, m->config[i].state, &stacks, depth);
        m->n_configs = stacks.begin;
    }
    *rest = set_open(m);
    for (uint32_t i = from->begin; i < from->end && !has_stopped(w) && machine_reserve(m, 1) == 0;
         i++) {
        if (!alone[i - from->begin])
            m->config[m->n_configs++] = m->config[i];
    }
    rest->end = m->n_configs;
}

/* Whether no byte leads on from two states of @from: walks from each have nothing in common. */
static bool part_at_once(const struct machine *m, const struct set *from) {
    struct byte_set all = {{0}};

    for (uint32_t i = from->begin, j; i < from->end; i++) {
        struct set one = {.begin = i, .end = i + 1};
        struct byte_set bytes = bytes_of(m, &one);

        for (j = from->begin; m->config[j].state != m->config[i].state; j++) {
        }
        for (unsigned w = 0; j == i && w < 4; w++) {
            if (all.w[w] & bytes.w[w])
                return false;
            all.w[w] |= bytes.w[w];
        }
    }
    return true;
}

static void steps_together(struct walk *w, uint32_t node, uint32_t last, const struct set *from,
                           uint32_t depth) {
    const struct trie_node *n = &w->trie->node[node];
    bool many = n->n_children >= MANY_CHILDREN;
    struct byte_set some = many ? bytes_of(w->m, from) : (struct byte_set){{0}};

    for (uint32_t i = 0; i < n->n_children && !has_stopped(w); i++) {
        uint8_t byte = w->trie->node[n->child + i].byte;
        struct set next;

        if (many && !byte_set_has(&some, byte))
            continue;
        if (machine_step(w->m, from, byte, &next))
            step_into(w, n, i, last, &next, depth);
        w->m->n_configs = next.begin;
    }
}

/* @last: the end of the items of @node and those below it. */
static void steps_below(struct walk *w, uint32_t node, uint32_t last, const struct set *from,
                        uint32_t depth) {
    const struct trie_node *n = &w->trie->node[node];
    struct machine *m = w->m;
    uint32_t n_configs = m->n_configs, n_from = from->end - from->begin;
    struct set rest = *from;

    if (needs_no_sets(w) &&
        (n_from == 1 || depth == 0 || (n_from <= APART_CONFIGS && part_at_once(m, from))))
        steps_apart(w, n, last, from, &rest, depth);
    if (rest.end - rest.begin == 1)
        steps_of_one(w, n, last, &rest, depth);
    else if (rest.end > rest.begin)
        steps_together(w, node, last, &rest, depth);
    m->n_configs = n_configs;
}

void walk_steps(struct walk *w, const struct set *from) {
    steps_below(w, 0, w->trie->n_items, from, 0);
}

enum { STEP_UNKNOWN, STEP_DEAD, STEP_SETS }; /* from here on: the number of a set */

/* @run: how far the set reads each kind of text, where that is one row (runway.c); or NULL.
 * @stays: text_bit() of bytes all texts of which are read, however long. */
struct known_set {
    struct set set;
    const uint8_t *run;
    uint64_t stays;
    uint32_t n_reached;
};

struct tables {
    struct walk *w;
    struct known_set *set;
    uint16_t (*next)[256];
    uint32_t n, cap, n_stays; /* n_stays: made by find_stays() */
    uint32_t *slot, mask;     /* hash table: number + 1 */
};

static uint32_t hash_of(const struct machine *m, const struct set *s) {
    uint64_t h = s->can_end + 2ull * s->end_reg;

    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];

        h = (h ^ c->state) * 0x9E3779B97F4A7C15u;
        h = (h ^ h >> 29 ^ c->reg) * 0xC2B2AE3D27D4EB4Fu;
        h = (h ^ h >> 31 ^ c->frame) * 0x165667B19E3779F9u;
        h += c->mark * 0x27D4EB2F165667C5u;
    }
    return (uint32_t)(h >> 32);
}

static bool equal(const struct machine *m, const struct set *x, const struct set *y) {
    return x->can_end == y->can_end && (!x->can_end || x->end_reg == y->end_reg) &&
           x->end - x->begin == y->end - y->begin &&
           memcmp(m->config + x->begin, m->config + y->begin,
                  (x->end - x->begin) * sizeof(*m->config)) == 0;
}

static bool grow(struct tables *t) {
    uint32_t cap = t->cap ? t->cap * 2 : SETS_FIRST;
    struct known_set *set = realloc(t->set, cap * sizeof(*set));

    if (set)
        t->set = set;
    void *next = realloc(t->next, cap * sizeof(*t->next));

    if (next)
        t->next = next;
    uint32_t *slot = calloc(cap * 2ul, sizeof(*slot));

    if (!set || !next || !slot) {
        free(slot);
        t->w->m->error = -ENOMEM;
        return false;
    }
    free(t->slot);
    t->slot = slot;
    t->cap = cap;
    t->mask = cap * 2 - 1;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t h = hash_of(t->w->m, &t->set[i].set) & t->mask;

        while (slot[h])
            h = (h + 1) & t->mask;
        slot[h] = i + 1;
    }
    return true;
}

static const uint8_t *only_run(const struct machine *m, const struct set *s) {
    if (s->end - s->begin != 1)
        return NULL;
    const struct config *c = &m->config[s->begin];

    return (m->g->state[c->state].flags & STATE_LOOP) && c->frame ? NULL : m->g->runway[c->state];
}

/* The number of @s, which is the last one of the machine and is taken off when it is known. */
static uint32_t number_of(struct tables *t, const struct set *s) {
    struct machine *m = t->w->m;

    if (t->n == SETS_MAX)
        m->error = -E2BIG;
    if (m->error || (t->n == t->cap && !grow(t)))
        return 0;
    uint32_t h = hash_of(m, s) & t->mask;

    for (; t->slot[h]; h = (h + 1) & t->mask) {
        if (equal(m, s, &t->set[t->slot[h] - 1].set)) {
            m->n_configs = s->begin;
            return t->slot[h] - 1;
        }
    }
    memset(t->next[t->n], 0, sizeof(*t->next));
    t->set[t->n] = (struct known_set){.set = *s, .run = only_run(m, s)};
    t->slot[h] = t->n + 1;
    return t->n++;
}

static uint16_t find_step(struct tables *t, uint32_t from, uint8_t byte) {
    struct machine *m = t->w->m;
    struct set s = t->set[from].set, next;
    uint16_t to = STEP_DEAD;

    if (machine_step(m, &s, byte, &next))
        to = (uint16_t)(STEP_SETS + number_of(t, &next));
    else
        m->n_configs = next.begin;
    return t->next[from][byte] = to;
}

static uint16_t step_of(struct tables *t, uint32_t from, uint8_t byte) {
    uint16_t to = t->next[from][byte];

    return to == STEP_UNKNOWN ? find_step(t, from, byte) : to;
}

static bool add_number(uint32_t *v, uint32_t *n, uint32_t cap, uint32_t x) {
    for (uint32_t i = 0; i < *n; i++) {
        if (v[i] == x)
            return true;
    }
    if (*n == cap)
        return false;
    v[(*n)++] = x;
    return true;
}

/* Bytes of which every one leads from the set @k to one of a few sets, and from each of these as
 * well. What has too many sets behind it is left out. Takes no fuel: a walk without it would end
 * at the same place. */
static void find_stays(struct tables *t, uint32_t k) {
    struct machine *m = t->w->m;
    uint32_t at[STAYS_SETS] = {k}, n = 1, before = t->n;
    uint64_t stays = ~TEXT_BIT_NONE, fuel = m->fuel;

    m->fuel = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        for (unsigned c = 0; c < 0x80 && !m->error; c++) {
            uint64_t bit = text_bit(c);

            if (!(stays & bit))
                continue;
            uint16_t to = t->n - before + t->n_stays < STAYS_MAX ? step_of(t, at[i], (uint8_t)c)
                                                                 : t->next[at[i]][c];

            if (m->error == -E2BIG) { /* too many readings, where the walk may never be */
                m->error = 0;
                to = t->next[at[i]][c] = STEP_UNKNOWN;
            }
            if (to < STEP_SETS ||
                t->set[to - STEP_SETS].set.begin == t->set[to - STEP_SETS].set.end ||
                !add_number(at, &n, STAYS_SETS, to - STEP_SETS))
                stays &= ~bit;
        }
    }
    t->n_stays += t->n - before;
    m->fuel = fuel;
    for (uint32_t i = 0; i < n; i++) { /* it holds for them all */
        struct known_set *s = &t->set[at[i]];

        if (i == 0 || s->n_reached < STAYS_REACHED)
            s->stays = stays;
        s->n_reached = MAX(s->n_reached, STAYS_REACHED);
    }
}

/* Whether the set @k, which was reached at @node, reads whatever is below it. */
static bool known_reads_all(struct tables *t, uint32_t k, const struct trie_node *n) {
    struct walk *w = t->w;
    struct known_set *s = &t->set[k];

    if (w->whole && n->n_children) {
        if (++s->n_reached == STAYS_REACHED && s->set.end - s->set.begin <= STAYS_CONFIGS)
            find_stays(t, k);
        if (!(w->trie->below[n - w->trie->node] & ~t->set[k].stays))
            return true;
    }
    s = &t->set[k];
    if (!s->run)
        return reads_all(w, &s->set, n);
    return (w->kinds >> n->kind & 1) && n->height <= RUNWAY_MAX && s->run[n->kind] >= n->height;
}

static void tables_below(struct tables *t, uint32_t node, uint32_t last, uint32_t from,
                         uint32_t depth) {
    struct walk *w = t->w;
    const struct trie_node *n = &w->trie->node[node], *child = &w->trie->node[n->child];

    for (uint32_t i = 0; i < n->n_children; i++, child++) {
        uint16_t to = t->next[from][child->byte];

        if (to == STEP_UNKNOWN) {
            to = find_step(t, from, child->byte);
            if (w->m->error)
                return;
        }
        assert(to == STEP_DEAD || (uint32_t)to - STEP_SETS < t->n);
        uint32_t end = i + 1 < n->n_children ? child[1].items : last;
        uint32_t k = to - STEP_SETS;

        if (to == STEP_DEAD) {
            if (w->clears)
                clear_items(w, child->items, end);
        } else if (!reach(w, n->child + i, &t->set[k].set, depth + 1)) {
            if (w->clears)
                clear_items(w, child->items + child->n_items, end);
        } else if (!known_reads_all(t, k, child)) {
            tables_below(t, n->child + i, end, k, depth + 1);
        } else if (!w->clears) {
            take(w, child->items + child->n_items, end, &t->set[k].set, depth + 1);
        }
    }
}

/* Below @node, which the sets @from and @like reach: the bits are those of @like. */
static void differ_below(struct tables *t, uint32_t node, uint32_t last, uint32_t from,
                         uint32_t like, uint32_t depth) {
    struct walk *w = t->w;
    const struct trie_node *n = &w->trie->node[node], *child = &w->trie->node[n->child];

    for (uint32_t i = 0; i < n->n_children && !has_stopped(w); i++, child++) {
        uint16_t to = step_of(t, from, child->byte), beside = step_of(t, like, child->byte);
        uint32_t end = i + 1 < n->n_children ? child[1].items : last;
        uint32_t below = child->items + child->n_items;

        if (w->m->error)
            return;
        if (to == beside) {
            if (to != STEP_DEAD)
                w->same(w, child->items, end, depth + 1);
            continue;
        }
        if (to == STEP_DEAD) {
            clear_items(w, child->items, end);
            continue;
        }
        if (!reach(w, n->child + i, &t->set[to - STEP_SETS].set, depth + 1))
            clear_items(w, below, end);
        else if (known_reads_all(t, to - STEP_SETS, child))
            set_items(w, below, end);
        else if (beside != STEP_DEAD)
            differ_below(t, n->child + i, end, to - STEP_SETS, beside - STEP_SETS, depth + 1);
        else
            tables_below(t, n->child + i, end, to - STEP_SETS, depth + 1);
    }
}

/* The number of a copy of @s. */
static uint32_t number_copy(struct tables *t, const struct set *s) {
    struct machine *m = t->w->m;
    uint32_t n = s->end - s->begin;

    if (machine_reserve(m, n) < 0)
        return 0;
    struct set copy = {.begin = m->n_configs, .end = m->n_configs + n};

    memcpy(m->config + copy.begin, m->config + s->begin, n * sizeof(*m->config));
    m->n_configs += n;
    return number_of(t, &copy);
}

static void tables_free(struct tables *t) {
    free(t->set);
    free(t->next);
    free(t->slot);
}

void walk_tables(struct walk *w, const struct set *from) {
    uint32_t n_configs = w->m->n_configs;
    struct tables t = {.w = w};

    assert(w->m->g->runway || !w->kinds);
    assert(!w->clears || (w->bits && !w->take));
    if (from->end > from->begin)
        number_copy(&t, from);
    if (from->end > from->begin && !w->m->error)
        tables_below(&t, 0, w->trie->n_items, 0, 0);
    tables_free(&t);
    w->m->n_configs = n_configs;
}

void walk_like(struct walk *w, const struct set *from, const struct set *like) {
    uint32_t n_configs = w->m->n_configs;
    struct tables t = {.w = w};

    assert(w->bits && w->same && !w->clears && from->end > from->begin && like->end > like->begin);
    uint32_t a = number_copy(&t, from), b = number_copy(&t, like);

    if (!w->m->error)
        differ_below(&t, 0, w->trie->n_items, a, b, 0);
    tables_free(&t);
    w->m->n_configs = n_configs;
}
