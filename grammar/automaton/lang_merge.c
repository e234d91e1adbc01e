/*
 * lang_merge - minimizes an automaton: states from which the same texts are accepted become one.
 *
 * Products of counts and multiples shrink a hundredfold, and so does all that is made of them. Two
 * algorithms share the states.
 *
 * States to which no cycle leads (order_states(), merge_ordered()): all states of a finite
 * language, and most of a language with a least length. They have a topological order and are taken
 * from its end. All targets of a state's edges are merged by then, so two states are equal exactly
 * if they accept the same and their rewritten edges are the same, which a hash table finds in
 * linear time (Revuz, "Minimisation of acyclic deterministic automata in linear time", 1992).
 * Example: "xa" | "ya".
 *
 *     0 --x--> 1 --a--> 3        3 and 4 accept and have no edges: equal. Then 1 and 2 both have
 *     0 --y--> 2 --a--> 4        --a--> {3, 4}: equal, too. Left: 0 --x,y--> {1, 2} --a--> {3, 4}
 *
 * The other states (merge_cyclic()): Hopcroft's partition refinement in the form of Valmari and
 * Lehtinen ("Efficient minimization of DFAs with partial transition functions", 2008). It begins
 * with the coarsest partition and splits what cannot stay together. There are two partitions: of
 * the states into blocks, and of the steps, each of which is a state, a symbol and a target, into
 * cords. At the end
 *
 * - the states of a block accept the same languages,
 * - the steps of a cord have one symbol and lead to one block,
 * - of the states of a block, either all or none begin a step of a given cord.
 *
 * refine() establishes this alternately: a new block splits the cords by whether their steps lead
 * to it, a new cord splits the blocks by whether their states begin one of its steps. A split
 * (mark(), split()) makes the smaller part the new set, so a step is looked at again only when its
 * set has at most half the size: the work is n log n in the number of steps n. Moore's simpler
 * algorithm, which splits all states in rounds, takes as many rounds as the longest text that is
 * needed to tell two states apart: a thousand for a maxLength of a thousand.
 *
 * Bytes that no edge tells apart are one symbol (find_symbols()), which makes the steps few.
 */

#include "grammar/automaton/lang.h"

#include <assert.h>
#include <string.h>
#include "base/try.h"

#define STEPS_MAX (1u << 20) /* a cyclic part with more is not minimized: that takes 44 MB */

/* A partition of the numbers below n into sets. The elements of set s are elem[first[s]] to
 * elem[past[s] - 1], the marked ones before the others. */
struct partition {
    uint32_t n_sets, n_touched;
    uint32_t *elem, *at, *set;             /* at: the place in elem[] */
    uint32_t *first, *past, *marked, *own; /* own: the sets with marked elements */
};

struct merger {
    struct partition block, cord;
    uint32_t n, n_steps;
    uint32_t *from;          /* by step: its state */
    uint32_t *into, *into_n; /* steps to state q: into[into_n[q]] to into[into_n[q + 1] - 1] */
    uint16_t symbol[257];    /* by byte */
};

static void partition_init(struct partition *p, uint32_t **room, uint32_t n) {
    uint32_t **array[] = {&p->elem, &p->at, &p->set, &p->first, &p->past, &p->marked, &p->own};

    *p = (struct partition){.n_sets = n > 0};
    for (size_t i = 0; i < ARRAY_SIZE(array); i++, *room += n)
        *array[i] = *room;
    memset(p->marked, 0, n * sizeof(*p->marked));
    memset(p->set, 0, n * sizeof(*p->set));
    for (uint32_t i = 0; i < n; i++)
        p->elem[i] = p->at[i] = i;
    if (n) {
        p->first[0] = 0;
        p->past[0] = n;
    }
}

static void mark(struct partition *p, uint32_t e) {
    uint32_t s = p->set[e], i = p->at[e], k = p->first[s] + p->marked[s];

    assert(i >= k && i < p->past[s]); /* not twice */
    p->elem[i] = p->elem[k];
    p->at[p->elem[i]] = i;
    p->elem[k] = e;
    p->at[e] = k;
    if (p->marked[s]++ == 0)
        p->own[p->n_touched++] = s;
}

/* Splits each set into its marked and unmarked elements; the smaller part becomes a new set. */
static void split(struct partition *p) {
    while (p->n_touched) {
        uint32_t s = p->own[--p->n_touched], k = p->first[s] + p->marked[s], made = p->n_sets;

        p->marked[s] = 0;
        if (k == p->past[s])
            continue;
        if (k - p->first[s] <= p->past[s] - k) {
            p->first[made] = p->first[s];
            p->past[made] = p->first[s] = k;
        } else {
            p->first[made] = k;
            p->past[made] = p->past[s];
            p->past[s] = k;
        }
        p->marked[made] = 0;
        for (uint32_t i = p->first[made]; i < p->past[made]; i++)
            p->set[p->elem[i]] = made;
        p->n_sets++;
    }
}

/* Numbers the symbols, ranges of bytes that no edge tells apart. Returns the number of steps, or 0
 * if they are too many. */
static uint32_t find_symbols(struct merger *m, const struct lang *l) {
    bool cut[258] = {false};
    uint64_t n = 0;

    for (uint32_t i = 0; i < l->n_edges; i++)
        cut[l->edge[i].lo] = cut[l->edge[i].hi + 1] = true;
    for (unsigned c = 1; c < 257; c++)
        m->symbol[c] = (uint16_t)(m->symbol[c - 1] + cut[c]);
    for (uint32_t i = 0; i < l->n_edges; i++)
        n += m->symbol[l->edge[i].hi] - m->symbol[l->edge[i].lo] + 1u;
    return n <= STEPS_MAX ? (uint32_t)n : 0;
}

/* Lists the steps in the order of their symbols, with one cord for each symbol to begin with, and
 * the steps into each state. */
static void list_steps(struct merger *m, const struct lang *l) {
    struct partition *p = &m->cord;
    uint32_t begin[258] = {0};

    for (uint32_t i = 0; i < l->n_edges; i++) {
        for (unsigned s = m->symbol[l->edge[i].lo]; s <= m->symbol[l->edge[i].hi]; s++) {
            begin[s + 1]++;
            m->into_n[l->edge[i].to]++;
        }
    }
    p->n_sets = 0;
    for (unsigned s = 0; s < 257; s++) {
        if (begin[s + 1]) {
            p->first[p->n_sets] = begin[s];
            p->past[p->n_sets++] = begin[s] + begin[s + 1];
        }
        begin[s + 1] += begin[s];
    }
    for (uint32_t s = 0; s < p->n_sets; s++) {
        for (uint32_t i = p->first[s]; i < p->past[s]; i++)
            p->set[i] = s;
    }
    for (uint32_t q = 0; q < m->n; q++)
        m->into_n[q + 1] += m->into_n[q];
    for (uint32_t q = 0; q < m->n; q++) {
        const struct lang_state *s = &l->state[q];

        for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
            for (unsigned k = m->symbol[l->edge[i].lo]; k <= m->symbol[l->edge[i].hi]; k++) {
                uint32_t step = begin[k]++;

                m->from[step] = q;
                m->into[--m->into_n[l->edge[i].to]] = step; /* down to its first step */
            }
        }
    }
}

static void refine(struct merger *m, const struct lang *l) {
    uint64_t bits = 0;
    uint32_t b = 1, c = 0;

    for (uint32_t q = 0; q < m->n; q++)
        bits |= l->state[q].accepts;
    for (; bits; bits &= bits - 1) {
        uint64_t bit = bits & -bits;

        for (uint32_t q = 0; q < m->n; q++) {
            if (l->state[q].accepts & bit)
                mark(&m->block, q);
        }
        split(&m->block);
    }
    for (; c < m->cord.n_sets; c++) {
        for (uint32_t i = m->cord.first[c]; i < m->cord.past[c]; i++)
            mark(&m->block, m->from[m->cord.elem[i]]);
        split(&m->block);
        for (; b < m->block.n_sets; b++) {
            for (uint32_t i = m->block.first[b]; i < m->block.past[b]; i++) {
                uint32_t q = m->block.elem[i];

                for (uint32_t k = m->into_n[q]; k < m->into_n[q + 1]; k++)
                    mark(&m->cord, m->into[k]);
            }
            split(&m->cord);
        }
    }
}

static int refine_part(struct build *b, const struct lang *l, uint32_t *set, uint32_t *n_sets) {
    struct merger m = {.n = l->n};

    m.n_steps = find_symbols(&m, l);
    if (m.n_steps == 0) {
        for (uint32_t q = 0; q < l->n; q++)
            set[q] = q;
        *n_sets = l->n;
        return 0;
    }
    uint32_t *memory = malloc((8ull * m.n + 1 + 9ull * m.n_steps) * sizeof(*memory));
    uint32_t *room = memory;

    if (!memory)
        return build_no_memory(b);
    partition_init(&m.block, &room, m.n);
    partition_init(&m.cord, &room, m.n_steps);
    m.from = room;
    m.into = m.from + m.n_steps;
    m.into_n = m.into + m.n_steps;
    assert(m.into_n + m.n + 1 == memory + 8ull * m.n + 1 + 9ull * m.n_steps);
    memset(m.into_n, 0, (m.n + 1ull) * sizeof(*m.into_n));
    list_steps(&m, l);
    refine(&m, l);
    memcpy(set, m.block.set, m.n * sizeof(*set));
    *n_sets = m.block.n_sets;
    free(memory);
    return build_work(b, m.n + 4ull * m.n_steps);
}

/* The states of a language in sets of equal ones. Once all targets of a state's edges have sets,
 * its edges are rewritten in place: they lead to sets, and adjacent ranges to one set are one. */
struct equals {
    struct lang *l;
    uint32_t *set;        /* class of state q, or NO_STATE while it is unknown */
    uint32_t *some;       /* for each class: one state whose edges are rewritten */
    uint32_t *order;      /* states that no cycle leads to, each before those that it leads to */
    uint32_t *slot, mask; /* hash table of sets: number + 1 */
    uint32_t n_sets, n_ordered;
};

static void rewrite_edges(struct equals *s, uint32_t q) {
    struct lang_state *state = &s->l->state[q];
    struct edge *edge = s->l->edge + state->edge;
    uint32_t n = 0;

    for (uint32_t i = 0; i < state->n_edges; i++) {
        struct edge e = edge[i];

        e.to = s->set[e.to];
        assert(e.to < s->n_sets); /* targets are classified before their sources */
        if (n && edge[n - 1].to == e.to && edge[n - 1].hi + 1u == e.lo)
            edge[n - 1].hi = e.hi;
        else
            edge[n++] = e;
    }
    state->n_edges = n;
}

static bool same_state(const struct lang *l, uint32_t q, uint32_t r) {
    const struct lang_state *x = &l->state[q], *y = &l->state[r];

    return x->accepts == y->accepts && x->n_edges == y->n_edges &&
           (x->n_edges == 0 ||
            memcmp(l->edge + x->edge, l->edge + y->edge, x->n_edges * sizeof(*l->edge)) == 0);
}

/* Returns the place of the set of @q in the hash table, or its free place. The edges of @q are
 * rewritten already. */
static uint32_t *find_set(const struct equals *s, uint32_t q) {
    const struct lang_state *state = &s->l->state[q];
    uint64_t h = state->accepts;

    for (uint32_t i = state->edge; i < state->edge + state->n_edges; i++) {
        const struct edge *e = &s->l->edge[i];

        h = (h ^ e->to ^ (uint64_t)e->lo << 32 ^ (uint64_t)e->hi << 48) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    uint32_t at = (uint32_t)(h >> 16) & s->mask;

    while (s->slot[at] && !same_state(s->l, s->some[s->slot[at] - 1], q))
        at = (at + 1) & s->mask;
    return &s->slot[at];
}

/* Lists in order[] the states to which no cycle leads, each behind its predecessors. */
static void order_states(struct equals *s) {
    const struct lang *l = s->l;
    uint32_t *n_before = s->set; /* zeros, to begin with */

    for (uint32_t i = 0; i < l->n_edges; i++)
        n_before[l->edge[i].to]++;
    for (uint32_t q = 0; q < l->n; q++) {
        if (n_before[q] == 0)
            s->order[s->n_ordered++] = q;
    }
    for (uint32_t k = 0; k < s->n_ordered; k++) {
        const struct lang_state *state = &l->state[s->order[k]];

        for (uint32_t i = state->edge; i < state->edge + state->n_edges; i++) {
            if (--n_before[l->edge[i].to] == 0)
                s->order[s->n_ordered++] = l->edge[i].to;
        }
    }
    memset(s->set, 0xff, l->n * sizeof(*s->set));
}

/* Finds the sets of the states that a cycle leads to. Such states lead only to each other, so they
 * are an automaton of their own. */
static int merge_cyclic(struct build *b, struct equals *s) {
    const struct lang *l = s->l;
    uint32_t n = l->n - s->n_ordered;
    CLEANUP(freep) struct lang_state *state = malloc(MAX(n, 1u) * sizeof(*state));
    CLEANUP(freep) struct edge *edge = malloc(MAX(l->n_edges, 1u) * sizeof(*edge));
    CLEANUP(freep) uint32_t *whole = malloc(2 * MAX(n, 1u) * sizeof(*whole));
    struct lang part = {.state = state, .edge = edge};

    if (!state || !edge || !whole)
        return build_no_memory(b);
    uint32_t *number = s->some, *set = whole + n;

    memset(number, 0, l->n * sizeof(*number));
    for (uint32_t k = 0; k < s->n_ordered; k++)
        number[s->order[k]] = NO_STATE;
    for (uint32_t q = 0; q < l->n; q++) {
        if (number[q] == NO_STATE)
            continue;
        whole[part.n] = q;
        state[part.n] = l->state[q];
        number[q] = part.n++;
    }
    for (uint32_t q = 0; q < n; q++) {
        uint32_t from = state[q].edge;

        state[q].edge = part.n_edges;
        for (uint32_t i = from; i < from + state[q].n_edges; i++) {
            edge[part.n_edges] = l->edge[i];
            edge[part.n_edges++].to = number[l->edge[i].to];
        }
    }
    TRY(refine_part(b, &part, set, &s->n_sets));
    for (uint32_t q = 0; q < n; q++)
        s->set[whole[q]] = set[q];
    memset(s->some, 0xff, s->n_sets * sizeof(*s->some));
    for (uint32_t q = 0; q < n; q++) {
        if (s->some[set[q]] != NO_STATE)
            continue;
        s->some[set[q]] = whole[q];
        rewrite_edges(s, whole[q]);
        *find_set(s, whole[q]) = set[q] + 1;
    }
    return 0;
}

/* Merges the states to which no cycle leads, from the last one on. */
static void merge_ordered(struct equals *s) {
    for (uint32_t k = s->n_ordered; k-- > 0;) {
        uint32_t q = s->order[k];

        rewrite_edges(s, q);
        uint32_t *slot = find_set(s, q);

        if (!*slot) {
            s->some[s->n_sets] = q;
            *slot = ++s->n_sets;
        }
        s->set[q] = *slot - 1;
    }
}

/* Keeps the first state of each set, so that the start stays the first state. */
static void keep_sets(const struct equals *s) {
    struct lang *l = s->l;
    uint32_t *number = s->some; /* number of each class; reuses the array */
    uint32_t n = 0, n_edges = 0;

    for (uint32_t i = 0; i < s->n_sets; i++)
        number[i] = NO_STATE;
    for (uint32_t q = 0; q < l->n; q++) {
        if (number[s->set[q]] == NO_STATE) {
            number[s->set[q]] = n;
            l->state[n++] = l->state[q];
        }
    }
    for (uint32_t q = 0; q < n; q++) {
        struct lang_state *state = &l->state[q];
        uint32_t from = state->edge;

        assert(n_edges <= from); /* edges lie in the order of their states */
        state->edge = n_edges;
        for (uint32_t i = from; i < from + state->n_edges; i++) {
            l->edge[n_edges] = l->edge[i];
            l->edge[n_edges].to = number[l->edge[n_edges].to];
            n_edges++;
        }
    }
    assert(n == s->n_sets);
    l->n = n;
    l->n_edges = n_edges;
}

int lang_merge(struct build *b, struct lang *l) {
    uint32_t n = l->n, n_slots = 64;
    int r = build_work(b, l->n + (uint64_t)l->n_edges);

    while (n_slots < 2ull * n)
        n_slots *= 2;
    CLEANUP(freep) uint32_t *memory = r == 0 ? calloc(3ull * n + n_slots, sizeof(*memory)) : NULL;

    if (r < 0 || n < 2)
        return r;
    if (!memory)
        return build_no_memory(b);
    struct equals s = {.l = l,
                       .set = memory,
                       .some = memory + n,
                       .order = memory + 2ull * n,
                       .slot = memory + 3ull * n,
                       .mask = n_slots - 1};

    order_states(&s);
    TRY(s.n_ordered < n ? merge_cyclic(b, &s) : 0);
    merge_ordered(&s);
    keep_sets(&s);
    return 0;
}
