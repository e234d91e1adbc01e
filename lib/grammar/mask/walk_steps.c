/*
 * walk_steps - short walks through a trie: the machine moves along every node.
 *
 * The general way is steps_together(): for each child of a node, machine_step() makes the set of
 * configurations behind the child's byte, and if that set is alive the walk goes on below it. This
 * needs no preparation, which is right for the few hundred nodes that can be read behind a quote or
 * a bracket. (Long walks, from a state that reads nearly everything, are in walk_tables.c.)
 *
 * Making a set is still the dear part, so three shortcuts do without sets where they can. All are
 * ways to the same result.
 *
 * 1. The middle of a rule (plain_below()). Example: behind `{` comes `"name"` or `"next"`. Along
 *    `"na` only the state changes: the rule cannot end there and calls nothing that begins with
 *    these bytes, so the stack has no say. The walk carries the number of the state and keeps the
 *    configurations with their stacks aside (`stacks`). Where the state may end its rule, or the
 *    byte may also begin a called rule, machine_follow() makes the set from these stacks and the
 *    general way goes on.
 * 2. A loop (loop_below()): blanks, or the characters of a key. The walk carries the state and the
 *    register. That is possible if what comes behind the loop begins with other bytes than the
 *    loop's own, so that each byte either stays in the loop or leaves it. Wherever the loop ends,
 *    the same set follows, which is made once (loop.behind).
 * 3. One configuration at a time (steps_apart()). A text can be read from a set if it can be read
 *    from one of its configurations, so each may be walked from on its own with shortcut 1 or 2,
 *    and the results are united. At the root this is always done. Further down it is done only for
 *    few configurations whose bytes differ: otherwise two of them might go on to the same set, and
 *    all that is below would be walked twice, at each such node anew.
 *
 * They apply only where the sets are not needed (needs_no_sets()): a walk whose visit() looks at
 * each set, or whose items must differ, takes the general way.
 *
 * Subtrees of which a state reads all texts are taken as a whole (reads_all(), steps_is_within()),
 * and subtrees without a needed token are skipped (is_idle_child()).
 */

#include <assert.h>

#include "grammar/mask/walk_nodes.h"

#define APART_CONFIGS 6 /* most configurations that are walked from one by one */
/* readings of a loop that are walked separately even if their callers read the same bytes */
#define MANY_READINGS 4
#define MANY_CHILDREN 16 /* children of a node from which on the set's bytes are listed first */

static void steps_below(struct walk *w, uint32_t node, uint32_t last, const struct set *from,
                        uint32_t depth);

/* Goes on at child @i of @n, which the set @next has reached. @last: the end of the items below
 * @n. */
static inline void steps_into(struct walk *w, const struct trie_node *n, uint32_t i, uint32_t last,
                              const struct set *next, uint32_t depth) {
    const struct trie_node *child = &w->trie->node[n->child + i];
    uint32_t end = i + 1 < n->n_children ? child[1].items : last;

    if (!node_reach(w, n->child + i, next, depth + 1))
        return;
    if (reads_all(w, next, child->kind, child->height))
        node_accept(w, child->items + child->n_items, end, next, depth + 1);
    else
        steps_below(w, n->child + i, end, next, depth + 1);
}

/* Returns the first child of @n from @i on whose byte is at least @byte. */
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

/* The children of node @n that edges of state @s read. Edges and children are both sorted: the loop
 * goes over whichever are fewer. */
struct readable {
    struct walk *w;
    const struct trie_node *n;
    const struct state *s;
    /* end of the items below @n */
    uint32_t last;
    /* the child, after next_readable(), and the state to which its edge leads */
    uint32_t i;
    uint32_t to;
    const struct edge *e;
};

static struct readable readable_from(struct walk *w, const struct trie_node *n, uint32_t last,
                                     uint32_t state) {
    const struct grammar *g = w->m->g;
    const struct state *s = &g->state[state];

    return (struct readable){w, n, s, last, UINT32_MAX, NO_STATE, g->edge + s->edge};
}

/* Goes to the next child below which an item is needed. Returns false if there is none, or the walk
 * has stopped. */
static bool next_readable(struct readable *r) {
    const struct trie_node *n = r->n, *child = &r->w->trie->node[n->child];
    const struct edge *end = r->w->m->g->edge + r->s->edge + r->s->n_edges;

    while (++r->i < n->n_children && !has_stopped(r->w)) {
        if (n->n_children <= r->s->n_edges) {
            r->to = state_next(r->w->m->g, r->s, child[r->i].byte);
        } else {
            for (;; r->e++) {
                if (r->e == end || r->e->lo >= TOKEN_SYMBOL)
                    return false;
                r->i = child_from(r->w->trie, n, r->i, r->e->lo);
                if (r->i == n->n_children)
                    return false;
                if (child[r->i].byte <= r->e->hi)
                    break;
            }
            r->to = r->e->to;
        }
        if (r->to != NO_STATE && !is_idle_child(r->w, n, r->i, r->last))
            return true;
    }
    return false;
}

/* Returns the bytes of the edges of @s. */
static struct byte_set steps_bytes(const struct machine *m, const struct set *s) {
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

/* Returns whether @state reads all texts below @n without leaving its rule. */
static bool steps_is_within(const struct walk *w, const struct trie_node *n, uint32_t state) {
    return (w->kinds >> n->kind & 1) && n->height <= FREE_CHARS_MAX &&
           w->m->g->free_chars[state][n->kind] >= n->height;
}

/* Returns whether @s is in the middle of a rule, so that its edges alone decide where it leads. */
static bool steps_is_plain(const struct state *s) {
    return s->n_edges && !(s->flags & (STATE_ACCEPT | STATE_LOOP | STATE_MEMBERS | STATE_WITHIN));
}

/* Classifies how the rules that @s calls begin, compared with the texts below @n: with none of
 * their bytes, with bytes that no edge of @s has, or with one that an edge has, too. */
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

/* Goes on at child @i of @n, to which an edge to state @to leads. */
static void plain_into(struct walk *w, const struct trie_node *n, uint32_t i, uint32_t last,
                       uint32_t to, const struct set *stacks, uint32_t depth) {
    const struct trie_node *child = &w->trie->node[n->child + i];
    uint32_t end = i + 1 < n->n_children ? child[1].items : last;
    const struct state *s = &w->m->g->state[to];
    struct machine *m = w->m;
    struct set next;
    enum calls calls = steps_is_plain(s) ? calls_at(w, s, child) : CALLS_BESIDE;

    if (calls == CALLS_BESIDE) {
        if (machine_follow(m, stacks, child->byte, to, &next))
            steps_into(w, n, i, last, &next, depth);
        m->n_configs = next.begin;
        return;
    }
    if (!machine_spend(m))
        return;
    w->n_visited++;
    set_items(w, child->items, child->items + child->n_items);
    if (w->blind && !w->visit(w, n->child + i, NULL, depth + 1))
        return;
    if (steps_is_within(w, child, to)) {
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

/* Walks below @n, which has been reached in the plain state @state with each stack of @stacks; the
 * states in @stacks are those from where the plain walk began, and do not count. */
static void plain_below(struct walk *w, const struct trie_node *n, uint32_t last, uint32_t state,
                        const struct set *stacks, uint32_t depth) {
    struct readable r = readable_from(w, n, last, state);

    while (next_readable(&r))
        plain_into(w, n, r.i, last, r.to, stacks, depth);
}

/* A loop that is walked without sets. */
struct loop {
    const struct call_desc *desc;
    const struct register_kind *kind;
    /* what follows the loop, wherever it ends */
    struct set behind;
    /* the bytes that `behind` reads, none of which the loop reads */
    struct byte_set bytes;
    /* Holds configurations that differ only by their counts: for each, the difference to the least
     * count, whose register the walk carries. The first entry is the configuration where the walk
     * began. */
    uint32_t more[SET_MAX], n;
};

/* Returns whether the loop may end in one of the configurations when the least count is @reg. */
static bool steps_may_end(const struct loop *k, uint32_t reg) {
    for (uint32_t i = 0; i < k->n; i++) {
        if (k->more[i] <= k->desc->max - reg &&
            k->kind->may_end(NULL, k->desc, 0, reg + k->more[i]))
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

/* Enters child @i of @n by an edge of @from that leads to @to. */
static void loop_into(struct walk *w, const struct trie_node *n, uint32_t i, uint32_t last,
                      const struct state *from, uint32_t to, uint32_t reg, const struct loop *k,
                      uint32_t depth) {
    const struct trie_node *child = &w->trie->node[n->child + i];
    uint32_t end = i + 1 < n->n_children ? child[1].items : last;
    const struct call_desc *d = k->desc;

    if (!k->kind->step(w->m->g, d, from, to, child->byte, &reg) || !machine_spend(w->m))
        return;
    w->n_visited++;
    set_items(w, child->items, child->items + child->n_items);
    if ((w->blind && !w->visit(w, n->child + i, NULL, depth + 1)) || !child->n_children)
        return;
    if (steps_is_within(w, child, to) &&
        (!k->kind->n_free || k->kind->n_free(w->m->g, d, to, reg) >= child->height)) {
        set_items(w, child->items + child->n_items, end);
        return;
    }
    loop_below(w, child, end, to, reg, k, depth + 1);
    if ((w->m->g->state[to].flags & STATE_ACCEPT) && has_child_of(w, child, &k->bytes) &&
        steps_may_end(k, reg) && !has_stopped(w))
        steps_below(w, n->child + i, end, &k->behind, depth + 1);
}

/* Walks below @n from @state of the loop, whose register is @reg. */
static void loop_below(struct walk *w, const struct trie_node *n, uint32_t last, uint32_t state,
                       uint32_t reg, const struct loop *k, uint32_t depth) {
    struct readable r = readable_from(w, n, last, state);

    while (next_readable(&r))
        loop_into(w, n, r.i, last, r.s, r.to, reg, k, depth);
}

/* Returns whether @c and @d are configurations of one loop that differ only by their counts. */
static bool count_apart(const struct machine *m, const struct config *c, const struct config *d) {
    return c->state == d->state && c->frame == d->frame && register_at(m, c) == &REGISTER_COUNTED;
}

/* Collects in k->more[] the registers of configuration @i of @from and of those that differ from it
 * only by their counts. Returns the least one. */
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

/* Walks from configuration @i of @from, which is in a loop, and from those that differ from it only
 * by their counts, without sets while they are in the loop. Returns false, with nothing done, if
 * the configuration is in no loop, if visit() needs the set at the end, or if there are few
 * readings and a byte does not show whether the loop goes on or has ended. */
static bool steps_of_loop(struct walk *w, const struct trie_node *n, uint32_t last,
                          const struct set *from, uint32_t i, uint32_t depth) {
    struct machine *m = w->m;
    const struct config c = m->config[i];
    const struct state *s = &m->g->state[c.state], *start;
    struct loop k;

    if (!(s->flags & STATE_LOOP) || s->n_calls || !c.frame)
        return false;
    k.desc = desc_of(m, c.frame);
    k.kind = register_at(m, &c);
    k.behind = set_open(m);
    uint32_t least = find_readings(m, from, i, &k);

    machine_return(m, &k.behind, 0, c.frame, 0);
    k.bytes = steps_bytes(m, &k.behind);
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

/* Walks from a single configuration. */
static void steps_of_one(struct walk *w, const struct trie_node *n, uint32_t last,
                         const struct set *from, uint32_t depth) {
    struct machine *m = w->m;
    struct readable r = readable_from(w, n, last, m->config[from->begin].state);

    while (next_readable(&r)) {
        struct set next;

        if (machine_follow(m, from, w->trie->node[n->child + r.i].byte, r.to, &next))
            steps_into(w, n, r.i, last, &next, depth);
        m->n_configs = next.begin;
    }
}

/* Returns whether the walk may do without sets where they are not needed. */
static bool needs_no_sets(const struct walk *w) {
    return !w->accept && (!w->visit || w->ends || w->blind) && !w->m->g->n_texts;
}

static bool is_free(const struct machine *m, const struct config *c) {
    return !(m->g->state[c->state].flags & (STATE_LOOP | STATE_MEMBERS | STATE_WITHIN));
}

/* Returns a set of the configurations of @from that have the state of configuration @i; they differ
 * by their stacks. */
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

/* Walks one by one from those configurations of @from that need no sets. Sets *@rest to the others,
 * as the machine's last set. */
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
        if (j < i) { /* an earlier configuration covered it */
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

/* Returns whether each byte leads on from at most one state of @from, so that walks from different
 * states have no node in common. */
static bool part_at_once(const struct machine *m, const struct set *from) {
    struct byte_set all = {{0}};

    for (uint32_t i = from->begin, j; i < from->end; i++) {
        struct set one = {.begin = i, .end = i + 1};
        struct byte_set bytes = steps_bytes(m, &one);

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
    struct byte_set some = many ? steps_bytes(w->m, from) : (struct byte_set){{0}};

    for (uint32_t i = 0; i < n->n_children && !has_stopped(w); i++) {
        uint8_t byte = w->trie->node[n->child + i].byte;
        struct set next;

        if ((many && !byte_set_has(&some, byte)) || is_idle_child(w, n, i, last))
            continue;
        if (machine_step(w->m, from, byte, &next))
            steps_into(w, n, i, last, &next, depth);
        w->m->n_configs = next.begin;
    }
}

/* Walks below @node from the set @from. @last: the end of the items at and below @node. */
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
    uint32_t n_configs = w->m->n_configs;

    assert(w->bits || !w->need);
    steps_below(w, 0, w->trie->n_items, from, 0);
    assert(w->m->n_configs == n_configs);
}
